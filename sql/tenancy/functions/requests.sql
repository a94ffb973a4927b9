-- Requests with an `Idempotency-Key`: the first one does the work, a repeat within a day gets the recorded response.

create or replace function tenancy.begin_request(p_tenant_id uuid, p_key text, p_fingerprint bytea)
returns table (state text, status smallint, location text, body text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_now constant timestamptz := now();
    v_request tenancy.requests;
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.requests as request
     where request.tenant_id = p_tenant_id
       and request.idempotency_key = p_key
       and request.created_at < v_now - interval '24 hours';
    insert into tenancy.requests (tenant_id, idempotency_key, fingerprint)
    values (p_tenant_id, p_key, p_fingerprint)
        on conflict do nothing;
    if found then
        return query select 'fresh', null::smallint, null::text, null::text;
        return;
    end if;

    select request.*
      into v_request
      from tenancy.requests as request
     where request.tenant_id = p_tenant_id
       and request.idempotency_key = p_key;
    return query
        select case
                   when v_request.fingerprint is null or v_request.status is null then 'in_progress'
                   when v_request.fingerprint <> p_fingerprint then 'another'
                   else 'answered'
               end,
               v_request.status,
               v_request.location,
               v_request.body;
exception
    when lock_not_available then
        return query select 'in_progress', null::smallint, null::text, null::text;
end
$$;
revoke all on function tenancy.begin_request(uuid, text, bytea) from public;
grant execute on function tenancy.begin_request(uuid, text, bytea) to postrider_app;
comment on function tenancy.begin_request(uuid, text, bytea) is
    'Takes an idempotency key of the tenant for this transaction. State `fresh`: do the work, then call '
    'finish_request. `answered`: the recorded response follows. `in_progress`: another transaction holds the key. '
    '`another`: a different request used the key.';

create or replace function tenancy.finish_request(p_tenant_id uuid, p_key text, p_status smallint, p_location text, p_body text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    update tenancy.requests as request
       set status = p_status,
           location = p_location,
           body = p_body
     where request.tenant_id = p_tenant_id
       and request.idempotency_key = p_key
       and request.status is null;
    if not found then
        raise exception 'no request with this key was begun' using errcode = 'no_data_found';
    end if;
end
$$;
revoke all on function tenancy.finish_request(uuid, text, smallint, text, text) from public;
grant execute on function tenancy.finish_request(uuid, text, smallint, text, text) to postrider_app;
comment on function tenancy.finish_request(uuid, text, smallint, text, text) is
    'Records the response of the request that this transaction began.';

create or replace function tenancy.tenants_with_old_requests()
returns setof uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select
                     from tenancy.requests as request
                    where request.tenant_id = tenant.id
                      and request.created_at < now() - interval '24 hours')
$$;
revoke all on function tenancy.tenants_with_old_requests() from public;
grant execute on function tenancy.tenants_with_old_requests() to postrider_worker;
comment on function tenancy.tenants_with_old_requests() is
    'Returns the tenants that have requests older than a day. Retention calls prune_requests for each of them.';

create or replace function tenancy.prune_requests(p_tenant_id uuid, p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_removed bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_limit is null or p_limit < 1 then
        raise exception 'the limit must be at least one' using errcode = 'invalid_parameter_value';
    end if;
    delete from tenancy.requests as request
     using (select old.idempotency_key
              from tenancy.requests as old
             where old.tenant_id = p_tenant_id
               and old.created_at < v_now - interval '24 hours'
             order by old.created_at
             limit p_limit
               for update skip locked) as old
     where request.tenant_id = p_tenant_id
       and request.idempotency_key = old.idempotency_key;
    get diagnostics v_removed = row_count;
    return v_removed;
end
$$;
revoke all on function tenancy.prune_requests(uuid, integer) from public;
grant execute on function tenancy.prune_requests(uuid, integer) to postrider_worker;
comment on function tenancy.prune_requests(uuid, integer) is
    'Deletes up to p_limit requests of the tenant that are older than a day. It skips locked rows; the next call '
    'deletes those.';

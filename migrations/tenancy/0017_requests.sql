-- Requests that may be repeated: what was answered to a request that came with an `Idempotency-Key`, for a day.
-- Safe beside running workers: it adds a table and functions and touches no other.

-- A row is written, and its answer with it, in the transaction that does the work. So a committed row is a request that
-- was carried out, and a request that failed leaves none.
create table tenancy.requests (
    tenant_id       uuid        not null references tenancy.tenants (id),
    idempotency_key text        not null,
    fingerprint     bytea       not null,
    created_at      timestamptz not null default now(),
    status          smallint,
    -- Where to find what it made, and what was said. No body is kept that holds a secret or is very large.
    location        text,
    body            text,
    constraint requests_one_row_per_key primary key (tenant_id, idempotency_key),
    constraint requests_key_is_printable check (idempotency_key ~ '^[ -~]{1,255}$'),
    constraint requests_fingerprint_is_sha256 check (octet_length(fingerprint) = 32),
    constraint requests_answers_are_bounded check (octet_length(body) <= 65536 and octet_length(location) <= 1024)
);
create index requests_by_age on tenancy.requests (created_at);
select tenancy.protect('tenancy.requests');

create trigger requests_answered_once
    before update on tenancy.requests
    for each row
    when (old.status is not null
          or (old.tenant_id, old.idempotency_key, old.fingerprint) is distinct from (new.tenant_id, new.idempotency_key, new.fingerprint))
    execute function tenancy.refuse_change('what was answered stays as it was said');

-- Takes the key for this transaction. `fresh`: do the work, then call `finish_request`. `answered`: it was done before.
-- `in_progress`: another transaction holds the key at this moment; nobody waits for it longer than a blink. `another`: the key
-- belongs to another request.
create function tenancy.begin_request(p_key text, p_fingerprint bytea)
returns table (state text, status smallint, location text, body text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_request tenancy.requests;
begin
    delete from tenancy.requests as request
     where request.tenant_id = v_tenant_id
       and request.idempotency_key = p_key
       and request.created_at < now() - interval '24 hours';
    insert into tenancy.requests (tenant_id, idempotency_key, fingerprint)
    values (v_tenant_id, p_key, p_fingerprint)
        on conflict do nothing;
    if found then
        return query select 'fresh', null::smallint, null::text, null::text;
        return;
    end if;

    select request.*
      into v_request
      from tenancy.requests as request
     where request.tenant_id = v_tenant_id
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

-- Records the answer of the request that this transaction began.
create function tenancy.finish_request(p_key text, p_status smallint, p_location text, p_body text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update tenancy.requests as request
       set status = p_status,
           location = p_location,
           body = p_body
     where request.tenant_id = tenancy.required_tenant_id()
       and request.idempotency_key = p_key
       and request.status is null;
    if not found then
        raise exception 'no request with this key was begun' using errcode = 'no_data_found';
    end if;
end
$$;

-- Forgets up to so many requests that are older than a day. Those that somebody is reading wait for the next time.
create function tenancy.prune_requests(p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_removed bigint;
begin
    if p_limit is null or p_limit < 1 then
        raise exception 'the limit must be at least one' using errcode = 'invalid_parameter_value';
    end if;
    delete from tenancy.requests as request
     using (select old.tenant_id, old.idempotency_key
              from tenancy.requests as old
             where old.created_at < now() - interval '24 hours'
             order by old.created_at
             limit p_limit
               for update skip locked) as old
     where request.tenant_id = old.tenant_id
       and request.idempotency_key = old.idempotency_key;
    get diagnostics v_removed = row_count;
    return v_removed;
end
$$;

revoke all on function
    tenancy.begin_request(text, bytea),
    tenancy.finish_request(text, smallint, text, text),
    tenancy.prune_requests(integer)
    from public;
grant execute on function
    tenancy.begin_request(text, bytea),
    tenancy.finish_request(text, smallint, text, text)
    to postrider_app;
grant execute on function tenancy.prune_requests(integer) to postrider_worker;

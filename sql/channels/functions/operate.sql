-- Functions for operators, metrics and retention: links of senders, executors, dead replies, counts, and the deletion
-- of old messages.

create or replace function channels.link_sender(
    p_id uuid, p_account_id uuid, p_sender_id text, p_user_id text, p_role text, p_actor text)
returns uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_id        uuid;
begin
    insert into channels.channel_links as link (id, tenant_id, account_id, sender_id, user_id, role)
    values (p_id, v_tenant_id, p_account_id, p_sender_id, p_user_id, p_role)
    on conflict on constraint channel_links_one_per_sender do update
       set user_id = excluded.user_id,
           role = excluded.role,
           updated_at = now()
    returning link.id into v_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'sender.linked', 'link:' || v_id, p_user_id || ' as ' || p_role);
    return v_id;
end
$$;
revoke all on function channels.link_sender(uuid, uuid, text, text, text, text) from public;
grant execute on function channels.link_sender(uuid, uuid, text, text, text, text) to postrider_app;
comment on function channels.link_sender(uuid, uuid, text, text, text, text) is
    'Sets the user and role of a sender at an account of the current tenant. Returns the id of the link.';

create or replace function channels.unlink_sender(p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    delete from channels.channel_links as link where link.tenant_id = v_tenant_id and link.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'sender.unlinked', 'link:' || p_id);
    return true;
end
$$;
revoke all on function channels.unlink_sender(uuid, text) from public;
grant execute on function channels.unlink_sender(uuid, text) to postrider_app;
comment on function channels.unlink_sender(uuid, text) is
    'Removes the link of a sender. Returns false if the current tenant has no such link.';

create or replace function channels.put_executor(
    p_id uuid, p_account_id uuid, p_kind text, p_url text, p_timeout_seconds integer, p_sealed_secret bytea,
    p_required_role text, p_sentinel jsonb, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    -- The row lock serializes two calls at once: the second one replaces the executor of the first.
    perform from tenancy.tenants as tenant where tenant.id = v_tenant_id for no key update;
    delete from channels.channel_executors as executor
     where executor.tenant_id = v_tenant_id
       and executor.account_id is not distinct from p_account_id;
    insert into channels.channel_executors
           (id, tenant_id, account_id, kind, url, timeout_seconds, sealed_secret, required_role, sentinel)
    values (p_id, v_tenant_id, p_account_id, p_kind, p_url, p_timeout_seconds, p_sealed_secret, p_required_role, p_sentinel);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'executor.set', 'executor:' || p_id, p_kind);
end
$$;
revoke all on function channels.put_executor(uuid, uuid, text, text, integer, bytea, text, jsonb, text) from public;
grant execute on function channels.put_executor(uuid, uuid, text, text, integer, bytea, text, jsonb, text)
    to postrider_app;
comment on function channels.put_executor(uuid, uuid, text, text, integer, bytea, text, jsonb, text) is
    'Sets the executor of an account of the current tenant, or with a null account of all accounts without one of '
    'their own.';

create or replace function channels.executor_of(p_account_id uuid)
returns table (id uuid, kind text, url text, timeout_seconds integer, sealed_secret bytea, sentinel jsonb)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select executor.id, executor.kind, executor.url, executor.timeout_seconds, executor.sealed_secret, executor.sentinel
      from channels.channel_executors as executor
     where executor.tenant_id = tenancy.required_tenant_id()
       and (executor.account_id = p_account_id or executor.account_id is null)
     order by executor.account_id nulls last
     limit 1
$$;
revoke all on function channels.executor_of(uuid) from public;
grant execute on function channels.executor_of(uuid) to postrider_app, postrider_worker;
comment on function channels.executor_of(uuid) is
    'Returns the executor of an account of the current tenant. The secret is sealed; the executing process has the '
    'master key.';

create or replace function channels.remove_executor(p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    delete from channels.channel_executors as executor where executor.tenant_id = v_tenant_id and executor.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'executor.removed', 'executor:' || p_id);
    return true;
end
$$;
revoke all on function channels.remove_executor(uuid, text) from public;
grant execute on function channels.remove_executor(uuid, text) to postrider_app;
comment on function channels.remove_executor(uuid, text) is
    'Removes an executor. Messages that find no other executor are refused from then on. Returns false if the current '
    'tenant has no such executor.';

create or replace function channels.requeue_replies(
    p_id uuid, p_account_id uuid, p_provider text, p_error_contains text, p_dead_before timestamptz,
    p_dead_since timestamptz, p_limit integer, p_actor text)
returns setof uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    return query
        -- Materialized, because a join could run this query again for each row and then find other rows each time.
        with dead as materialized (
            select dead.id
              from channels.channel_outbox as dead
             where dead.tenant_id = v_tenant_id
               and dead.status = 'dead'
               and (p_id is null or dead.id = p_id)
               and (p_account_id is null or dead.account_id = p_account_id)
               and (p_provider is null or dead.provider = p_provider)
               and (p_error_contains is null or position(lower(p_error_contains) in lower(dead.last_error)) > 0)
               and (p_dead_before is null or dead.updated_at < p_dead_before)
               and (p_dead_since is null or dead.updated_at >= p_dead_since)
             order by dead.updated_at
             limit p_limit
               for update
        ), requeued as (
            update channels.channel_outbox as reply
               set status = 'pending',
                   attempt_count = 0,
                   next_attempt_at = now(),
                   updated_at = now()
              from dead
             where reply.id = dead.id
               and reply.status = 'dead'
            returning reply.id
        ), noted as (
            insert into tenancy.audit_log (tenant_id, actor, action, subject)
            select v_tenant_id, p_actor, 'reply.requeued', 'reply:' || requeued.id
              from requeued
        )
        select requeued.id from requeued;
end
$$;
revoke all on function channels.requeue_replies(uuid, uuid, text, text, timestamptz, timestamptz, integer, text)
    from public;
grant execute on function channels.requeue_replies(uuid, uuid, text, text, timestamptz, timestamptz, integer, text)
    to postrider_app;
comment on function channels.requeue_replies(uuid, uuid, text, text, timestamptz, timestamptz, integer, text) is
    'Makes dead replies of the current tenant pending again, with all their attempts: the one with p_id, or up to '
    'p_limit that match. A null filter matches everything. Each one is audited.';

create or replace function channels.measure_replies()
returns table (pending bigint, due bigint, over_a_minute bigint, over_ten_minutes bigint, over_an_hour bigint,
               oldest_seconds double precision, tried_before bigint, in_doubt bigint, sending bigint,
               dead bigint, unfinished_messages bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select count(*) filter (where reply.status = 'pending'),
           count(*) filter (where reply.status = 'pending' and reply.next_attempt_at <= now()),
           count(*) filter (where reply.created_at < now() - interval '1 minute'),
           count(*) filter (where reply.created_at < now() - interval '10 minutes'),
           count(*) filter (where reply.created_at < now() - interval '1 hour'),
           coalesce(extract(epoch from now() - min(reply.created_at)), 0)::double precision,
           count(*) filter (where reply.attempt_count > 0),
           count(*) filter (where reply.in_doubt_since is not null),
           count(*) filter (where reply.status = 'sending'),
           (select count(*) from channels.channel_outbox as dead where dead.status = 'dead'),
           (select count(*) from channels.channel_messages as message where message.leased_until is not null)
      from channels.channel_outbox as reply
     where reply.status in ('pending', 'sending')
$$;
revoke all on function channels.measure_replies() from public;
grant execute on function channels.measure_replies() to postrider_worker;
comment on function channels.measure_replies() is
    'Counts replies and unfinished messages over all tenants, for the metrics.';

create or replace function channels.prune_messages(p_older_than interval, p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_removed bigint;
begin
    if p_older_than is null or p_older_than < interval '0' or p_limit is null or p_limit < 1 then
        raise exception 'say how old a message must be, and how many to remove at most' using errcode = 'invalid_parameter_value';
    end if;
    -- Materialized: see requeue_replies.
    with old as materialized (
        select old.id
          from channels.channel_messages as old
         where old.created_at < now() - p_older_than
           and old.status <> 'accepted'
           and old.leased_until is null
           and not exists (select from channels.channel_outbox as reply
                            where reply.tenant_id = old.tenant_id
                              and reply.channel_message_id = old.id
                              and (reply.status in ('pending', 'sending') or reply.updated_at >= now() - p_older_than))
         order by old.created_at
         limit p_limit
           for update skip locked
    )
    delete from channels.channel_messages as message
     using old
     where message.id = old.id;
    get diagnostics v_removed = row_count;
    return v_removed;
end
$$;
revoke all on function channels.prune_messages(interval, integer) from public;
grant execute on function channels.prune_messages(interval, integer) to postrider_worker;
comment on function channels.prune_messages(interval, integer) is
    'Deletes up to p_limit ended messages that are older than p_older_than, with their replies. Messages with a reply '
    'that is not yet sent or dead stay.';

-- Functions for operators, metrics and retention: links of senders, executors, dead replies, counts, and the deletion
-- of old messages.

create or replace function channels.link_sender(
    p_tenant_id uuid, p_id uuid, p_account_id uuid, p_sender_id text, p_user_id text, p_role text, p_actor text)
returns uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_id  uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into channels.channel_links as link (id, tenant_id, account_id, sender_id, user_id, role)
    values (p_id, p_tenant_id, p_account_id, p_sender_id, p_user_id, p_role)
    on conflict on constraint channel_links_one_per_sender do update
       set user_id = excluded.user_id,
           role = excluded.role,
           updated_at = v_now
    returning link.id into v_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'sender.linked', 'link:' || v_id, p_user_id || ' as ' || p_role);
    return v_id;
end
$$;
revoke all on function channels.link_sender(uuid, uuid, uuid, text, text, text, text) from public;
grant execute on function channels.link_sender(uuid, uuid, uuid, text, text, text, text) to postrider_app;
comment on function channels.link_sender(uuid, uuid, uuid, text, text, text, text) is
    'Sets the user and role of a sender at an account. Returns the id of the link.';

create or replace function channels.unlink_sender(p_tenant_id uuid, p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from channels.channel_links as link where link.tenant_id = p_tenant_id and link.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'sender.unlinked', 'link:' || p_id);
    return true;
end
$$;
revoke all on function channels.unlink_sender(uuid, uuid, text) from public;
grant execute on function channels.unlink_sender(uuid, uuid, text) to postrider_app;
comment on function channels.unlink_sender(uuid, uuid, text) is
    'Removes the link of a sender. Returns false if the tenant has no such link.';

create or replace function channels.put_executor(
    p_tenant_id uuid, p_id uuid, p_account_id uuid, p_kind text, p_url text, p_timeout_seconds integer,
    p_sealed_secret bytea, p_required_role text, p_sentinel jsonb, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- The row lock serializes two calls at once: the second one replaces the executor of the first.
    perform from tenancy.tenants as tenant where tenant.id = p_tenant_id for no key update;
    delete from channels.channel_executors as executor
     where executor.tenant_id = p_tenant_id
       and executor.account_id is not distinct from p_account_id;
    insert into channels.channel_executors
           (id, tenant_id, account_id, kind, url, timeout_seconds, sealed_secret, required_role, sentinel)
    values (p_id, p_tenant_id, p_account_id, p_kind, p_url, p_timeout_seconds, p_sealed_secret, p_required_role, p_sentinel);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'executor.set', 'executor:' || p_id, p_kind);
end
$$;
revoke all on function channels.put_executor(uuid, uuid, uuid, text, text, integer, bytea, text, jsonb, text) from public;
grant execute on function channels.put_executor(uuid, uuid, uuid, text, text, integer, bytea, text, jsonb, text)
    to postrider_app;
comment on function channels.put_executor(uuid, uuid, uuid, text, text, integer, bytea, text, jsonb, text) is
    'Sets the executor of an account, or with a null account of all accounts without one of '
    'their own.';

create or replace function channels.executor_of(p_tenant_id uuid, p_account_id uuid)
returns table (id uuid, kind text, url text, timeout_seconds integer, sealed_secret bytea, sentinel jsonb)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select executor.id, executor.kind, executor.url, executor.timeout_seconds, executor.sealed_secret,
               executor.sentinel
          from channels.channel_executors as executor
         where executor.tenant_id = p_tenant_id
           and (executor.account_id = p_account_id or executor.account_id is null)
         order by executor.account_id nulls last
         limit 1;
end
$$;
revoke all on function channels.executor_of(uuid, uuid) from public;
grant execute on function channels.executor_of(uuid, uuid) to postrider_app, postrider_worker;
comment on function channels.executor_of(uuid, uuid) is
    'Returns the executor of an account. The secret is sealed; the executing process has the '
    'master key.';

create or replace function channels.remove_executor(p_tenant_id uuid, p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from channels.channel_executors as executor where executor.tenant_id = p_tenant_id and executor.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'executor.removed', 'executor:' || p_id);
    return true;
end
$$;
revoke all on function channels.remove_executor(uuid, uuid, text) from public;
grant execute on function channels.remove_executor(uuid, uuid, text) to postrider_app;
comment on function channels.remove_executor(uuid, uuid, text) is
    'Removes an executor. Messages that find no other executor are refused from then on. Returns false if the tenant '
    'has no such executor.';

create or replace function channels.requeue_replies(
    p_tenant_id uuid, p_id uuid, p_account_id uuid, p_provider text, p_error_contains text, p_dead_before timestamptz,
    p_dead_since timestamptz, p_limit integer, p_actor text)
returns setof uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_id  uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    for v_id in
        select dead.id
          from channels.channel_outbox as dead
         where dead.tenant_id = p_tenant_id
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
    loop
        update channels.channel_outbox as reply
           set status = 'pending',
               attempt_count = 0,
               next_attempt_at = v_now,
               requeued_at = v_now,
               updated_at = v_now
         where reply.tenant_id = p_tenant_id
           and reply.id = v_id;
        insert into tenancy.audit_log (tenant_id, actor, action, subject)
        values (p_tenant_id, p_actor, 'reply.requeued', 'reply:' || v_id);
        return next v_id;
    end loop;
end
$$;
revoke all on function channels.requeue_replies(uuid, uuid, uuid, text, text, timestamptz, timestamptz, integer, text)
    from public;
grant execute on function channels.requeue_replies(uuid, uuid, uuid, text, text, timestamptz, timestamptz, integer, text)
    to postrider_app;
comment on function channels.requeue_replies(uuid, uuid, uuid, text, text, timestamptz, timestamptz, integer, text) is
    'Makes dead replies of a tenant pending again, with all their attempts: the one with p_id, or up to p_limit that '
    'match. A null filter matches everything. Each one is audited.';

create or replace function channels.measure_replies()
returns table (pending bigint, due bigint, over_a_minute bigint, over_ten_minutes bigint, over_an_hour bigint,
               oldest_seconds double precision, tried_before bigint, in_doubt bigint, sending bigint,
               dead bigint, unfinished_messages bigint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    return query
        select count(*) filter (where reply.status = 'pending'),
               count(*) filter (where reply.status = 'pending' and reply.next_attempt_at <= v_now),
               count(*) filter (where reply.created_at < v_now - interval '1 minute'),
               count(*) filter (where reply.created_at < v_now - interval '10 minutes'),
               count(*) filter (where reply.created_at < v_now - interval '1 hour'),
               coalesce(extract(epoch from v_now - min(reply.created_at)), 0)::double precision,
               count(*) filter (where reply.attempt_count > 0),
               count(*) filter (where reply.in_doubt_since is not null),
               count(*) filter (where reply.status = 'sending'),
               (select count(*) from channels.channel_outbox as dead where dead.status = 'dead'),
               (select count(*) from channels.channel_messages as message where message.leased_until is not null)
          from channels.channel_outbox as reply
         where reply.status in ('pending', 'sending');
end
$$;
revoke all on function channels.measure_replies() from public;
grant execute on function channels.measure_replies() to postrider_worker;
comment on function channels.measure_replies() is
    'Counts replies and unfinished messages over all tenants, for the metrics, without locking anything.';

create or replace function channels.tenants_with_old_messages(p_older_than interval)
returns table (tenant_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select tenant.id
      from tenancy.tenants as tenant
     where (select message.created_at
              from channels.channel_messages as message
             where message.tenant_id = tenant.id
             order by message.created_at
             limit 1) < now() - p_older_than
$$;
revoke all on function channels.tenants_with_old_messages(interval) from public;
grant execute on function channels.tenants_with_old_messages(interval) to postrider_worker;
comment on function channels.tenants_with_old_messages(interval) is
    'Chooses the tenants that have messages older than p_older_than, without locking anything.';

create or replace function channels.prune_messages(p_tenant_id uuid, p_older_than interval, p_limit integer default 1000)
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
    v_before constant timestamptz := now() - p_older_than;
    v_ids    uuid[];
    v_id     uuid;
begin
    if p_tenant_id is null then
        raise exception 'p_tenant_id must not be null' using errcode = 'null_value_not_allowed';
    end if;
    if p_older_than is null or p_older_than < interval '0' or p_limit is null or p_limit < 1 then
        raise exception 'say how old a message must be, and how many to remove at most' using errcode = 'invalid_parameter_value';
    end if;
    v_ids := array(
        select old.id
          from channels.channel_messages as old
         where old.tenant_id = p_tenant_id
           and old.created_at < v_before
           and old.status <> 'accepted'
           and old.leased_until is null
           -- A message has at most one reply.
           and coalesce((select reply.status in ('sent', 'dead') and reply.updated_at < v_before
                           from channels.channel_outbox as reply
                          where reply.tenant_id = p_tenant_id
                            and reply.channel_message_id = old.id), true)
         order by old.created_at
         limit p_limit
           for update skip locked);
    foreach v_id in array v_ids loop
        delete from channels.channel_messages as message
         where message.tenant_id = p_tenant_id
           and message.id = v_id;
    end loop;
    return cardinality(v_ids)::bigint;
end
$$;
revoke all on function channels.prune_messages(uuid, interval, integer) from public;
grant execute on function channels.prune_messages(uuid, interval, integer) to postrider_worker;
comment on function channels.prune_messages(uuid, interval, integer) is
    'Deletes up to p_limit ended messages of a tenant that are older than p_older_than, with their replies. Messages '
    'with a reply that is not yet sent or dead stay.';

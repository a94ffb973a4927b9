-- Dispatching: replies are claimed account by account in turns, and every result is fenced by its claim.
-- Safe beside running workers: it adds functions and touches no table.

-- Takes up to `p_limit` replies that are due and that nobody holds, beginning behind the account `p_after`, and from no account
-- more than there is room for: `p_rooms` says it for `p_accounts`, `p_room` for all others. Accounts are found one by one
-- in the index, so that nobody's backlog is read for somebody else's reply.
create function channels.claim_replies(
    p_worker text, p_limit integer, p_room integer, p_accounts uuid[], p_rooms integer[], p_after_tenant uuid, p_after_account uuid)
returns table (id uuid, tenant_id uuid, channel_message_id uuid, account_id uuid, provider text, recipient_id text, payload jsonb,
               attempt_count integer, max_attempts integer, claims integer, in_doubt_since timestamptz,
               provider_message_id text, correlation_id uuid, created_at timestamptz, account_version timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set enable_incremental_sort = off
as $$
declare
    v_nobody  constant uuid := '00000000-0000-0000-0000-000000000000';
    v_tenant  uuid := coalesce(p_after_tenant, v_nobody);
    v_account uuid := coalesce(p_after_account, v_nobody);
    -- Once around, and no further.
    v_is_second_round boolean := p_after_tenant is null;
    v_room    integer;
    v_left    integer := p_limit;
    v_found   uuid[];
    v_ids     uuid[] := '{}';
begin
    if coalesce(btrim(p_worker), '') = '' then
        raise exception 'a dispatcher must name itself to claim replies' using errcode = 'invalid_parameter_value';
    end if;
    while v_left > 0 loop
        select reply.tenant_id, reply.account_id
          into v_tenant, v_account
          from channels.channel_outbox as reply
         where reply.status in ('pending', 'sending')
           and (reply.tenant_id, reply.account_id) > (v_tenant, v_account)
         order by reply.tenant_id, reply.account_id
         limit 1;
        if not found then
            exit when v_is_second_round;
            v_is_second_round := true;
            v_tenant := v_nobody;
            v_account := v_nobody;
            continue;
        end if;
        exit when v_is_second_round and p_after_tenant is not null
              and (v_tenant, v_account) > (p_after_tenant, p_after_account);
        v_room := least(coalesce(p_rooms[array_position(p_accounts, v_account)], p_room), v_left);
        continue when v_room < 1;
        v_found := array(
            select reply.id
              from channels.channel_outbox as reply
             where reply.status in ('pending', 'sending')
               and reply.status = 'pending'
               and reply.tenant_id = v_tenant
               and reply.account_id = v_account
               and reply.next_attempt_at <= now()
             order by reply.next_attempt_at, reply.id
             limit v_room
               for update skip locked);
        v_ids := v_ids || v_found;
        v_left := v_left - cardinality(v_found);
    end loop;
    if v_ids = '{}' then
        return;
    end if;
    return query
        update channels.channel_outbox as reply
           set status = 'sending',
               locked_at = now(),
               locked_by = p_worker,
               claims = reply.claims + 1,
               updated_at = now()
         where reply.id = any (v_ids)
        returning reply.id, reply.tenant_id, reply.channel_message_id, reply.account_id, reply.provider, reply.recipient_id,
                  reply.payload, reply.attempt_count, reply.max_attempts, reply.claims, reply.in_doubt_since,
                  reply.provider_message_id, reply.correlation_id, reply.created_at,
                  (select account.updated_at from tenancy.provider_accounts as account
                    where account.tenant_id = reply.tenant_id and account.id = reply.account_id);
end
$$;

-- Records what became of replies, each under its claim, and says in which state each is now. What is not held under that claim
-- any more is not in the answer, and did not change. Verdicts:
--   sent     the provider has it, under `p_message_ids`
--   retry    it failed: again after `p_pauses`, or dead when it has failed as often as it may
--   dead     it failed for good
--   release  it was not tried: it is pending again, and nothing is counted
-- What failed, but was proven to have arrived in the meantime, is sent.
create function channels.settle_replies(
    p_worker text, p_ids uuid[], p_claims integer[], p_verdicts text[], p_message_ids text[], p_errors text[], p_pauses interval[],
    p_in_doubt boolean[])
returns table (id uuid, status text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '10s'
as $$
begin
    return query
        with settled as (
            update channels.channel_outbox as reply
               set status = case
                                when given.verdict = 'sent'
                                  or given.verdict <> 'release' and reply.provider_message_id is not null then 'sent'
                                when given.verdict = 'dead'
                                  or given.verdict = 'retry' and reply.attempt_count + 1 >= reply.max_attempts then 'dead'
                                else 'pending'
                            end,
                   attempt_count = reply.attempt_count + case when given.verdict in ('retry', 'dead') then 1 else 0 end,
                   next_attempt_at = case when given.verdict in ('retry', 'release') then now() + given.pause
                                          else reply.next_attempt_at end,
                   last_error = case when given.verdict = 'sent' then reply.last_error
                                     else coalesce(left(given.error, 1000), reply.last_error) end,
                   in_doubt_since = case when given.verdict = 'sent'
                                           or given.verdict <> 'release' and reply.provider_message_id is not null then null
                                         when given.in_doubt then coalesce(reply.in_doubt_since, now())
                                         else reply.in_doubt_since end,
                   provider_message_id = coalesce(left(given.message_id, 512), reply.provider_message_id),
                   sent_at = case when given.verdict = 'sent'
                                    or given.verdict <> 'release' and reply.provider_message_id is not null then now() end,
                   locked_at = null,
                   locked_by = null,
                   updated_at = now()
              from unnest(p_ids, p_claims, p_verdicts, p_message_ids, p_errors, p_pauses, p_in_doubt)
                   as given (id, claim, verdict, message_id, error, pause, in_doubt)
             -- Only what is being sent is locked by somebody. Asked for by its status, it would be looked for in the index of
             -- everything that is on its way.
             where reply.id = given.id
               and reply.locked_by = p_worker
               and reply.claims = given.claim
               and given.verdict in ('sent', 'retry', 'dead', 'release')
            returning reply.id, reply.status, reply.tenant_id, reply.last_error
        ), noted as (
            insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
            select settled.tenant_id, p_worker, 'reply.dead', 'reply:' || settled.id, settled.last_error
              from settled
             where settled.status = 'dead'
        )
        select settled.id, settled.status from settled;
end
$$;

-- Gives back what a dispatcher held for longer than it may: it is gone, and what it was sending may have arrived.
create function channels.reclaim_replies(p_lock_timeout interval, p_limit integer default 1000)
returns table (id uuid, channel_message_id uuid, correlation_id uuid, worker text)
language sql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
    -- Found once: see requeue_replies.
    with stale as materialized (
        select stale.id, stale.locked_by
          from channels.channel_outbox as stale
         where stale.status = 'sending'
           and stale.locked_at < now() - p_lock_timeout
         order by stale.locked_at
         limit p_limit
           for update skip locked
    )
    update channels.channel_outbox as reply
       set status = 'pending',
           in_doubt_since = coalesce(reply.in_doubt_since, now()),
           last_error = 'the dispatcher that was sending it went away',
           next_attempt_at = now(),
           locked_at = null,
           locked_by = null,
           updated_at = now()
      from stale
     where reply.id = stale.id
    returning reply.id, reply.channel_message_id, reply.correlation_id, stale.locked_by
$$;

-- Queues dead replies of the context's tenant again, with all their attempts: one, or up to so many that match. A filter that is
-- null matches everything. Each is audited.
create function channels.requeue_replies(
    p_id uuid, p_account_id uuid, p_provider text, p_error_contains text, p_dead_before timestamptz, p_dead_since timestamptz,
    p_limit integer, p_actor text)
returns setof uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    return query
        -- Found once: inside a join they would be looked for row by row, and each time there would be others.
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

-- How replies stand, over all tenants, for the metrics.
create function channels.measure_replies()
returns table (pending bigint, due bigint, over_a_minute bigint, over_ten_minutes bigint, over_an_hour bigint, oldest_seconds double precision,
               tried_before bigint, in_doubt bigint, sending bigint, dead bigint, unfinished_messages bigint)
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

-- Removes up to so many messages that are over and older than this, with their replies. What is on its way stays.
create function channels.prune_messages(p_older_than interval, p_limit integer default 1000)
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
    -- Found once: see requeue_replies.
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

revoke all on all functions in schema channels from public;
grant execute on function
    channels.requeue_replies(uuid, uuid, text, text, timestamptz, timestamptz, integer, text)
    to postrider_app;
grant execute on function
    channels.claim_replies(text, integer, integer, uuid[], integer[], uuid, uuid),
    channels.settle_replies(text, uuid[], integer[], text[], text[], text[], interval[], boolean[]),
    channels.reclaim_replies(interval, integer),
    channels.measure_replies(),
    channels.prune_messages(interval, integer)
    to postrider_worker;

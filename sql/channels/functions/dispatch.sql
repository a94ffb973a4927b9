-- Dispatching: dispatchers claim replies account by account in turns, and each result is fenced by its claim.

create or replace function channels.claim_replies(
    p_worker text, p_limit integer, p_room integer, p_accounts uuid[], p_rooms integer[],
    p_after_tenant uuid, p_after_account uuid)
returns table (id uuid, tenant_id uuid, channel_message_id uuid, account_id uuid, provider text, recipient_id text,
               payload jsonb, attempt_count integer, max_attempts integer, claims integer, in_doubt_since timestamptz,
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
    -- The claim goes around all accounts once.
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
revoke all on function channels.claim_replies(text, integer, integer, uuid[], integer[], uuid, uuid) from public;
grant execute on function channels.claim_replies(text, integer, integer, uuid[], integer[], uuid, uuid)
    to postrider_worker;
comment on function channels.claim_replies(text, integer, integer, uuid[], integer[], uuid, uuid) is
    'Claims up to p_limit due replies, starting after the given account and going around once. Each account yields at '
    'most its entry in p_rooms, or p_room if it has none. Accounts are found one by one in the index, so one backlog '
    'does not slow down the claims of others.';

create or replace function channels.settle_replies(
    p_worker text, p_ids uuid[], p_claims integer[], p_verdicts text[], p_message_ids text[], p_errors text[],
    p_pauses interval[], p_in_doubt boolean[])
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
             -- A lock implies the status `sending`. A condition on the status would make Postgres search the index of
             -- all pending and sending replies.
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
revoke all on function channels.settle_replies(text, uuid[], integer[], text[], text[], text[], interval[], boolean[])
    from public;
grant execute on function channels.settle_replies(text, uuid[], integer[], text[], text[], text[], interval[], boolean[])
    to postrider_worker;
comment on function channels.settle_replies(text, uuid[], integer[], text[], text[], text[], interval[], boolean[]) is
    'Records results under their claims and returns the new status of each reply; replies that are no longer held '
    'under that claim do not change. Verdicts: `sent`; `retry` after p_pauses, or dead after the last attempt; '
    '`dead`; `release`, which counts nothing. A failed reply that has provably arrived becomes sent.';

create or replace function channels.reclaim_replies(p_lock_timeout interval, p_limit integer default 1000)
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
    -- Materialized: see requeue_replies.
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
revoke all on function channels.reclaim_replies(interval, integer) from public;
grant execute on function channels.reclaim_replies(interval, integer) to postrider_worker;
comment on function channels.reclaim_replies(interval, integer) is
    'Releases replies whose lock is older than p_lock_timeout, because their dispatcher is gone. They become in '
    'doubt, because the attempt may have arrived.';

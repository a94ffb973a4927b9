-- Dispatching: a dispatcher chooses accounts with due replies over all tenants, claims replies tenant by tenant, and
-- records each result under its claim.

create or replace function channels.accounts_with_due_replies(
    p_limit integer, p_full_tenants uuid[], p_full_accounts uuid[], p_after_tenant uuid, p_after_account uuid)
returns table (tenant_id uuid, account_id uuid)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_incremental_sort = off
as $$
declare
    v_nil     constant uuid := uuid '00000000-0000-0000-0000-000000000000';
    v_now     constant timestamptz := now();
    v_tenant  uuid := coalesce(p_after_tenant, v_nil);
    v_account uuid := coalesce(p_after_account, v_nil);
    -- The walk goes around all accounts once.
    v_is_second_round boolean := p_after_tenant is null;
    v_left    integer := p_limit;
begin
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
            v_tenant := v_nil;
            v_account := v_nil;
            continue;
        end if;
        exit when v_is_second_round and p_after_tenant is not null
              and (v_tenant, v_account) > (p_after_tenant, p_after_account);
        continue when exists (select
                                from unnest(p_full_tenants, p_full_accounts) as filled (tenant_id, account_id)
                               where filled.tenant_id = v_tenant
                                 and filled.account_id = v_account);
        -- The account as a whole waits for its provider, or one reply finds out whether it answers again.
        continue when exists (select
                                from execution.account_states as state
                               where state.tenant_id = v_tenant
                                 and state.account_id = v_account
                                 and (state.wait_until > v_now or state.circuit_open_until > v_now
                                      or state.circuit_open_until is not null and state.probe_until > v_now));
        perform
           from channels.channel_outbox as reply
          where reply.status in ('pending', 'sending')
            and reply.status = 'pending'
            and reply.tenant_id = v_tenant
            and reply.account_id = v_account
            and reply.next_attempt_at <= v_now
          order by reply.next_attempt_at, reply.id
          limit 1;
        continue when not found;
        tenant_id := v_tenant;
        account_id := v_account;
        return next;
        v_left := v_left - 1;
    end loop;
end
$$;
revoke all on function channels.accounts_with_due_replies(integer, uuid[], uuid[], uuid, uuid) from public;
grant execute on function channels.accounts_with_due_replies(integer, uuid[], uuid[], uuid, uuid) to postrider_worker;
comment on function channels.accounts_with_due_replies(integer, uuid[], uuid[], uuid, uuid) is
    'Chooses up to p_limit accounts of all tenants that have due replies, without locking anything. The walk starts '
    'after the given account, goes around once, and skips the accounts in p_full_tenants and p_full_accounts, and those that '
    'wait for their provider or have an open circuit. It finds '
    'accounts one by one in the index, so one backlog does not slow down the choice.';

create or replace function channels.claim_replies(
    p_tenant_id uuid, p_worker text, p_limit integer, p_accounts uuid[], p_capacities integer[])
returns table (id uuid, channel_message_id uuid, account_id uuid, provider text, recipient_id text, payload jsonb,
               attempt_count integer, max_attempts integer, claims integer, in_doubt_since timestamptz,
               provider_message_id text, correlation_id uuid, created_at timestamptz, account_version timestamptz,
               is_requeued boolean, is_probe boolean)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_incremental_sort = off
as $$
declare
    v_now     constant timestamptz := now();
    v_left    integer := p_limit;
    v_version timestamptz;
    v_ids     uuid[];
    v_id      uuid;
    v_waits   boolean;
    v_probes  boolean;
begin
    if p_tenant_id is null then
        raise exception 'p_tenant_id must not be null' using errcode = 'null_value_not_allowed';
    end if;
    if coalesce(btrim(p_worker), '') = '' then
        raise exception 'p_worker must not be empty' using errcode = 'invalid_parameter_value';
    end if;
    for v_at in 1..coalesce(cardinality(p_accounts), 0) loop
        exit when v_left < 1;
        continue when p_capacities[v_at] < 1;
        v_probes := false;
        select coalesce(state.wait_until > v_now, false) or coalesce(state.circuit_open_until > v_now, false),
               state.circuit_open_until is not null
          into v_waits, v_probes
          from execution.account_states as state
         where state.tenant_id = p_tenant_id
           and state.account_id = p_accounts[v_at];
        continue when v_waits;
        v_ids := array(
            select reply.id
              from channels.channel_outbox as reply
             where reply.status in ('pending', 'sending')
               and reply.status = 'pending'
               and reply.tenant_id = p_tenant_id
               and reply.account_id = p_accounts[v_at]
               and reply.next_attempt_at <= v_now
             order by reply.next_attempt_at, reply.id
             limit case when v_probes then 1 else least(p_capacities[v_at], v_left) end
               for update skip locked);
        continue when v_ids = '{}';
        -- While the circuit is half open, one reply at a time finds out whether the provider answers again.
        if v_probes then
            update execution.account_states as state
               set probe_job_id = null,
                   probe_until = v_now + interval '2 minutes'
             where state.tenant_id = p_tenant_id
               and state.account_id = p_accounts[v_at]
               and (state.probe_until is null or state.probe_until <= v_now);
            continue when not found;
        end if;
        v_left := v_left - cardinality(v_ids);
        v_version := (select account.updated_at
                        from tenancy.provider_accounts as account
                       where account.tenant_id = p_tenant_id
                         and account.id = p_accounts[v_at]);
        -- One by one: for a list of ids Postgres might read all replies of the tenant, when it takes them to be few.
        foreach v_id in array v_ids loop
            return query
                update channels.channel_outbox as reply
                   set status = 'sending',
                       locked_at = v_now,
                       locked_by = p_worker,
                       claims = reply.claims + 1,
                       updated_at = v_now
                 where reply.tenant_id = p_tenant_id
                   and reply.id = v_id
                returning reply.id, reply.channel_message_id, reply.account_id, reply.provider, reply.recipient_id,
                          reply.payload, reply.attempt_count, reply.max_attempts, reply.claims, reply.in_doubt_since,
                          reply.provider_message_id, reply.correlation_id, reply.created_at, v_version,
                          coalesce(reply.requeued_at > reply.in_doubt_since, false), coalesce(v_probes, false);
        end loop;
    end loop;
end
$$;
revoke all on function channels.claim_replies(uuid, text, integer, uuid[], integer[]) from public;
grant execute on function channels.claim_replies(uuid, text, integer, uuid[], integer[]) to postrider_worker;
comment on function channels.claim_replies(uuid, text, integer, uuid[], integer[]) is
    'Claims up to p_limit due replies of a tenant, account by account in the given order, the longest due first. Each '
    'account yields at most its entry in p_capacities, one while its circuit is half open (is_probe), and none while it waits for '
    'its provider. Replies that another dispatcher is claiming are skipped.';

create or replace function channels.note_account(
    p_tenant_id uuid, p_account_id uuid, p_worker text, p_word text, p_pause interval, p_reason text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_now   constant timestamptz := now();
    v_until constant timestamptz := v_now + least(p_pause, interval '1 day');
begin
    insert into execution.account_states (tenant_id, account_id)
    select account.tenant_id, account.id
      from tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and account.id = p_account_id
        on conflict do nothing;
    if p_word = 'waits' then
        update execution.account_states as state
           set wait_until = v_until,
               wait_reason = left(p_reason, 500)
         where state.tenant_id = p_tenant_id
           and state.account_id = p_account_id
           and (state.wait_until is null or state.wait_until < v_until);
    elsif p_word = 'look_ups_wait' then
        update execution.account_states as state
           set next_look_up_at = v_until
         where state.tenant_id = p_tenant_id
           and state.account_id = p_account_id
           and (state.next_look_up_at is null or state.next_look_up_at < v_until);
    elsif p_word in ('refused', 'login_refused') then
        perform execution.break_circuit(p_tenant_id, p_account_id, p_worker, p_reason, p_word = 'login_refused');
    elsif p_word = 'answers' then
        update execution.account_states as state
           set circuit_open_until = null,
               circuit_reason = null,
               circuit_openings = 0,
               probe_job_id = null,
               probe_until = null
         where state.tenant_id = p_tenant_id
           and state.account_id = p_account_id
           and state.circuit_open_until is not null;
        if found then
            insert into tenancy.audit_log (tenant_id, actor, action, subject)
            values (p_tenant_id, p_worker, 'account.circuit_closed', 'account:' || p_account_id);
            perform execution.wake_jobs_of_circuit(p_tenant_id, p_account_id);
        end if;
    end if;
end
$$;
revoke all on function channels.note_account(uuid, uuid, text, text, interval, text) from public;
comment on function channels.note_account(uuid, uuid, text, text, interval, text) is
    'Records for all processes what an attempt has shown about the account: `waits` (no call for p_pause), `look_ups_wait`, '
    '`refused`, `login_refused` (no call before the secret is changed), or `answers` after a probe.';

create or replace function channels.take_look_up(
    p_tenant_id uuid, p_account_id uuid, p_every interval,
    out wait_seconds double precision, out every_seconds double precision)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_now   constant timestamptz := now();
    v_every interval;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select coalesce(interval '1 minute' / (account.limits ->> 'look_ups_per_minute')::integer, p_every)
      into v_every
      from tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and account.id = p_account_id;
    wait_seconds := 0;
    every_seconds := coalesce(extract(epoch from v_every)::double precision, 0);
    if v_every is null then
        return;
    end if;
    insert into execution.account_states as state (tenant_id, account_id, next_look_up_at)
    values (p_tenant_id, p_account_id, v_now + v_every)
        on conflict (tenant_id, account_id) do update
       set next_look_up_at = excluded.next_look_up_at
     where state.next_look_up_at is null or state.next_look_up_at <= v_now;
    if found then
        return;
    end if;
    select greatest(extract(epoch from state.next_look_up_at - v_now)::double precision, 0.001)
      into wait_seconds
      from execution.account_states as state
     where state.tenant_id = p_tenant_id
       and state.account_id = p_account_id;
end
$$;
revoke all on function channels.take_look_up(uuid, uuid, interval) from public;
grant execute on function channels.take_look_up(uuid, uuid, interval) to postrider_worker;
comment on function channels.take_look_up(uuid, uuid, interval) is
    'Takes the right to one look-up at an account, which all processes share: one in p_every, unless the limits of the account '
    'say otherwise. wait_seconds is 0, or the time until the next look-up; every_seconds is the time from one to the next.';

create or replace function channels.settle_replies(
    p_tenant_ids uuid[], p_worker text, p_ids uuid[], p_claims integer[], p_verdicts text[], p_message_ids text[],
    p_errors text[], p_pauses interval[], p_in_doubt boolean[], p_accounts text[] default '{}')
returns table (id uuid, status text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '10s'
as $$
declare
    v_now constant timestamptz := now();
    v_noted record;
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
                   next_attempt_at = case when given.verdict in ('retry', 'release') then v_now + given.pause
                                          else reply.next_attempt_at end,
                   last_error = case when given.verdict = 'sent' then reply.last_error
                                     else coalesce(left(given.error, 1000), reply.last_error) end,
                   in_doubt_since = case when given.verdict = 'sent'
                                           or given.verdict <> 'release' and reply.provider_message_id is not null then null
                                         when given.in_doubt then v_now
                                         else reply.in_doubt_since end,
                   provider_message_id = coalesce(left(given.message_id, 512), reply.provider_message_id),
                   sent_at = case when given.verdict = 'sent'
                                    or given.verdict <> 'release' and reply.provider_message_id is not null then v_now end,
                   locked_at = null,
                   locked_by = null,
                   updated_at = v_now
              from unnest(p_tenant_ids, p_ids, p_claims, p_verdicts, p_message_ids, p_errors, p_pauses, p_in_doubt)
                   as given (tenant_id, id, claim, verdict, message_id, error, pause, in_doubt)
             -- A lock implies the status `sending`. A condition on the status would make Postgres search the index of
             -- all pending and sending replies.
             where reply.tenant_id = given.tenant_id
               and reply.id = given.id
               and reply.locked_by = p_worker
               and reply.claims = given.claim
               and given.verdict in ('sent', 'retry', 'dead', 'release')
            returning reply.id, reply.status, reply.tenant_id, reply.last_error
        ), audited as (
            insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
            select settled.tenant_id, p_worker, 'reply.dead', 'reply:' || settled.id, settled.last_error
              from settled
             where settled.status = 'dead'
        )
        select settled.id, settled.status from settled;
    if array_remove(p_accounts, null) <> '{}' then
        for v_noted in
            select reply.tenant_id, reply.account_id, given.account, max(given.pause) as pause, max(given.error) as error
              from unnest(p_tenant_ids, p_ids, p_accounts, p_pauses, p_errors) as given (tenant_id, id, account, pause, error)
                   join channels.channel_outbox as reply on reply.tenant_id = given.tenant_id and reply.id = given.id
             where given.account is not null
             group by reply.tenant_id, reply.account_id, given.account
             order by reply.tenant_id, reply.account_id, given.account
        loop
            perform channels.note_account(
                v_noted.tenant_id, v_noted.account_id, p_worker, v_noted.account, v_noted.pause, v_noted.error);
        end loop;
    end if;
end
$$;
revoke all on function channels.settle_replies(
    uuid[], text, uuid[], integer[], text[], text[], text[], interval[], boolean[], text[]) from public;
grant execute on function channels.settle_replies(
    uuid[], text, uuid[], integer[], text[], text[], text[], interval[], boolean[], text[]) to postrider_worker;
comment on function channels.settle_replies(
    uuid[], text, uuid[], integer[], text[], text[], text[], interval[], boolean[], text[]) is
    'Records results under their claims and returns the new status of each reply; replies that are no longer held '
    'under that claim do not change. Verdicts: `sent`; `retry` after p_pauses, or dead after the last attempt; '
    '`dead`; `release`, which counts nothing. p_accounts has what each has shown about its account, as for note_account. A failed reply that has provably arrived becomes sent. One call may '
    'combine several tenants: each result names the tenant of its reply.';

create or replace function channels.tenants_with_stale_replies(p_lock_timeout interval, p_limit integer)
returns table (tenant_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    -- Only the index of locks has the order of the inner query. Without the inner query, Postgres may group by tenant
    -- while it reads all pending replies in the index for claims.
    select stale.tenant_id
      from (select reply.tenant_id, reply.locked_at
              from channels.channel_outbox as reply
             where reply.status = 'sending'
               and reply.locked_at < now() - p_lock_timeout
             order by reply.locked_at) as stale
     group by stale.tenant_id
     order by min(stale.locked_at)
     limit p_limit
$$;
revoke all on function channels.tenants_with_stale_replies(interval, integer) from public;
grant execute on function channels.tenants_with_stale_replies(interval, integer) to postrider_worker;
comment on function channels.tenants_with_stale_replies(interval, integer) is
    'Chooses up to p_limit tenants with replies whose lock is older than p_lock_timeout, the oldest lock first, '
    'without locking anything.';

create or replace function channels.reclaim_replies(
    p_tenant_id uuid, p_lock_timeout interval, p_limit integer default 1000)
returns table (id uuid, channel_message_id uuid, correlation_id uuid, worker text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_now   constant timestamptz := now();
    v_stale record;
begin
    for v_stale in
        select stale.id, stale.locked_by
          from channels.channel_outbox as stale
         where stale.tenant_id = p_tenant_id
           and stale.status = 'sending'
           and stale.locked_at < v_now - p_lock_timeout
         order by stale.locked_at
         limit p_limit
           for update skip locked
    loop
        return query
            update channels.channel_outbox as reply
               set status = 'pending',
                   in_doubt_since = v_now,
                   last_error = 'the dispatcher that was sending it went away',
                   next_attempt_at = v_now,
                   locked_at = null,
                   locked_by = null,
                   updated_at = v_now
             where reply.tenant_id = p_tenant_id
               and reply.id = v_stale.id
            returning reply.id, reply.channel_message_id, reply.correlation_id, v_stale.locked_by;
    end loop;
end
$$;
revoke all on function channels.reclaim_replies(uuid, interval, integer) from public;
grant execute on function channels.reclaim_replies(uuid, interval, integer) to postrider_worker;
comment on function channels.reclaim_replies(uuid, interval, integer) is
    'Releases replies of a tenant whose lock is older than p_lock_timeout, because their dispatcher is gone. They '
    'become in doubt, because the attempt may have arrived.';

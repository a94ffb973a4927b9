-- Rate limits, daily limits and requested waits of provider accounts.

create or replace function execution.held_account(
    p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean)
returns uuid
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_account_id uuid;
begin
    perform tenancy.limit_idle_time();
    select case when p_failover then run.failover_account_id else run.provider_account_id end
      into v_account_id
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
       and job.status = 'locked'
       and job.locked_by = p_worker_id
       and job.attempts = p_attempt;
    if v_account_id is null then
        raise exception 'send job % is not held by % under attempt %', p_job_id, coalesce(p_worker_id, 'null'),
                        coalesce(p_attempt::text, 'null')
            using errcode = 'PR001',
                  hint = 'A lock lasts five minutes without a heartbeat; it may have gone stale and been taken over.';
    end if;
    -- Check first: an insert alone would wait for a concurrent insert of the same row.
    if not exists (select
                     from execution.account_states as state
                    where state.tenant_id = p_tenant_id
                      and state.account_id = v_account_id)
    then
        insert into execution.account_states (tenant_id, account_id)
        values (p_tenant_id, v_account_id)
            on conflict do nothing;
    end if;
    return v_account_id;
end
$$;
comment on function execution.held_account(uuid, text, uuid, integer, boolean) is
    'Returns the account, or the failover account, of a tenant''s send job that the worker holds, and creates the state row of the '
    'account. Raises PR001 if the worker does not hold the send job.';
revoke all on function execution.held_account(uuid, text, uuid, integer, boolean) from public;

create or replace function execution.roll_quota(p_counts integer[], p_slot bigint, p_now_slot bigint)
returns integer[]
language sql
immutable
set search_path = pg_catalog, pg_temp
return case
           when p_slot is null or p_counts is null or p_now_slot - p_slot >= 13 then array_fill(0, array[13])
           else (array_fill(0, array[greatest(p_now_slot - p_slot, 0)::integer]) || p_counts)[1:13]
       end;
comment on function execution.roll_quota(integer[], bigint, bigint) is
    'Moves the counts of a quota on to the current twelfth of its period. Thirteen twelfths are counted, so that no span of the '
    'length of the period holds more calls than the quota.';
revoke all on function execution.roll_quota(integer[], bigint, bigint) from public;

-- The limits of the account apply; `p_rate` is the provider's rate for an account without one, and `p_quota_calls` in any
-- `p_quota_seconds` is its quota beside the rate. Tokens may be granted up to a second ahead: the caller waits, and need not ask
-- again in the meantime.
--
-- `p_again` is for an item that is reserved already and provably was not sent. Its call is counted and waits for the
-- rate; no other limit delays it.
create or replace function execution.take_call_tokens(
    p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_wanted integer,
    p_failover boolean default false, p_rate double precision default null, p_again boolean default false,
    p_quota_calls integer default null, p_quota_seconds double precision default null)
returns table (granted integer, wait_seconds double precision, why text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    c_ahead constant double precision := 1.0::double precision;
    v_account_id uuid;
    v_state execution.account_states;
    v_limits jsonb;
    v_now timestamptz;
    v_rate double precision;
    v_burst double precision;
    v_zone text;
    v_today date;
    v_tokens double precision;
    v_quota integer;
    v_slot_seconds double precision;
    v_slot bigint;
    v_oldest bigint;
    v_is_probe boolean := false;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_wanted is null or p_wanted < 1 then
        raise exception 'p_wanted must be at least 1, not %', coalesce(p_wanted::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    v_account_id := execution.held_account(p_tenant_id, p_worker_id, p_job_id, p_attempt, p_failover);
    select account.limits
      into v_limits
      from tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and account.id = v_account_id;
    select state.*
      into strict v_state
      from execution.account_states as state
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id
       for no key update;
    -- After a crash of the server the token bucket may be slightly too full once. The calls of a day are counted
    -- and must survive a crash.
    v_quota := coalesce((v_limits #>> '{quota,calls}')::integer, p_quota_calls);
    if v_limits ->> 'daily' is null and v_quota is null then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    -- Read the clock after the lock was granted: earlier callers have used up their tokens by then.
    v_now := clock_timestamp();
    granted := p_wanted;
    wait_seconds := 0;

    if not p_again then
        if v_state.wait_until > v_now then
            return query select 0, extract(epoch from v_state.wait_until - v_now)::double precision, 'retry_after';
            return;
        end if;
        if v_state.circuit_open_until > v_now then
            return query select 0, extract(epoch from v_state.circuit_open_until - v_now)::double precision, 'circuit';
            return;
        end if;
        if v_state.circuit_open_until is not null then
            if v_state.probe_until > v_now and v_state.probe_job_id <> p_job_id then
                return query select 0, 0.5::double precision, 'circuit';
                return;
            end if;
            v_is_probe := true;
            granted := 1;
        end if;
    end if;

    v_zone := coalesce(v_limits #>> '{hours,time_zone}', v_limits ->> 'time_zone', 'UTC');
    v_today := (v_now at time zone v_zone)::date;
    if v_today is distinct from v_state.day then
        v_state.used_today := 0;
    end if;
    if v_limits ->> 'daily' is not null and not p_again then
        granted := least(granted, (v_limits ->> 'daily')::bigint - v_state.used_today)::integer;
        if granted < 1 then
            return query
                select 0, extract(epoch from (v_today + 1)::timestamp at time zone v_zone - v_now)::double precision, 'daily';
            return;
        end if;
    end if;

    if v_quota is not null then
        v_slot_seconds := coalesce((v_limits #>> '{quota,seconds}')::double precision, p_quota_seconds) / 12;
        v_slot := floor(extract(epoch from v_now) / v_slot_seconds)::bigint;
        v_state.quota_counts := execution.roll_quota(v_state.quota_counts, v_state.quota_slot, v_slot);
        v_state.quota_slot := v_slot;
        if not p_again then
            granted := least(granted, v_quota - (select sum(counted.calls) from unnest(v_state.quota_counts) as counted (calls)))::integer;
            if granted < 1 then
                -- Calls are free again when the oldest twelfth with a call is no longer counted.
                select max(counted.place)
                  into v_oldest
                  from unnest(v_state.quota_counts) with ordinality as counted (calls, place)
                 where counted.calls > 0;
                return query
                    select 0, greatest((v_slot - (v_oldest - 1) + 13) * v_slot_seconds - extract(epoch from v_now)::double precision, 0.1),
                           'rate';
                return;
            end if;
        end if;
    end if;

    v_rate := coalesce((v_limits ->> 'rate_per_second')::double precision, p_rate);
    if v_rate is not null then
        v_burst := greatest(coalesce((v_limits ->> 'burst')::double precision, v_rate / 5), 1);
        v_tokens := case
                        -- The bucket is full at the first call.
                        when v_state.refilled_at is null then v_burst
                        else least(v_burst, v_state.tokens + v_rate * greatest(extract(epoch from v_now - v_state.refilled_at), 0))
                    end;
        granted := least(granted, floor(v_tokens + v_rate * c_ahead))::integer;
        if granted < 1 then
            granted := 0;
            wait_seconds := (1 - v_tokens) / v_rate - c_ahead;
            why := 'rate';
        else
            wait_seconds := greatest((granted - v_tokens) / v_rate, 0);
            why := case when wait_seconds > 0 then 'rate' end;
        end if;
        v_state.tokens := v_tokens - granted;
        v_state.refilled_at := v_now;
    end if;
    if v_quota is not null then
        v_state.quota_counts[1] := v_state.quota_counts[1] + granted;
    end if;

    update execution.account_states as state
       set tokens = v_state.tokens,
           refilled_at = v_state.refilled_at,
           quota_counts = v_state.quota_counts,
           quota_slot = v_state.quota_slot,
           day = v_today,
           used_today = v_state.used_today + granted,
           probe_job_id = case when v_is_probe and granted > 0 then p_job_id else state.probe_job_id end,
           probe_until = case when v_is_probe and granted > 0 then v_now + interval '2 minutes' else state.probe_until end
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id;
    return next;
end
$$;
comment on function execution.take_call_tokens(uuid, text, uuid, integer, integer, boolean, double precision, boolean, integer, double precision) is
    'Grants up to p_wanted call tokens of an account for a send job that the worker holds, and returns how long to wait '
    'before they are used; or 0, with the reason and the time until the next try. All times are those of the '
    'database.';
revoke all on function
    execution.take_call_tokens(uuid, text, uuid, integer, integer, boolean, double precision, boolean, integer, double precision)
    from public;
grant execute on function
    execution.take_call_tokens(uuid, text, uuid, integer, integer, boolean, double precision, boolean, integer, double precision)
    to postrider_worker;

create or replace function execution.hold_account(
    p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_seconds double precision,
    p_reason text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_until constant timestamptz := now() + least(p_seconds, 86400) * interval '1 second';
    v_account_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    v_account_id := execution.held_account(p_tenant_id, p_worker_id, p_job_id, p_attempt, p_failover);
    update execution.account_states as state
       set wait_until = v_until,
           wait_reason = left(p_reason, 500)
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id
       and (state.wait_until is null or state.wait_until < v_until);
end
$$;
comment on function execution.hold_account(uuid, text, uuid, integer, boolean, double precision, text) is
    'Records that the provider asked for no calls: every process waits for so long, at most one day.';
revoke all on function execution.hold_account(uuid, text, uuid, integer, boolean, double precision, text) from public;
grant execute on function
    execution.hold_account(uuid, text, uuid, integer, boolean, double precision, text)
    to postrider_worker;

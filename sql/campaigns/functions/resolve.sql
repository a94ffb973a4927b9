-- The resolver: claims items in doubt, and settles them as far as the provider allows.

create or replace function execution.tenants_with_due_doubts(
    p_providers text[], p_limit integer, p_except_tenants uuid[] default '{}', p_except_accounts uuid[] default '{}')
returns table (tenant_id uuid, doubts integer)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    select due.tenant_id, count(*)::integer
      from (select doubt.tenant_id, doubt.next_look_at
              from execution.doubts as doubt
             where not doubt.is_for_person
               and doubt.next_look_at <= now()
               and (doubt.held_until is null or doubt.held_until < now())
               and doubt.provider = any (p_providers)
               and not exists (select
                                 from unnest(p_except_tenants, p_except_accounts) as busy (tenant_id, account_id)
                                where busy.tenant_id = doubt.tenant_id
                                  and busy.account_id = doubt.account_id)
             order by doubt.next_look_at
             limit p_limit) as due
     group by due.tenant_id
     order by min(due.next_look_at)
$$;
comment on function execution.tenants_with_due_doubts(text[], integer, uuid[], uuid[]) is
    'Chooses up to p_limit items in doubt that are due for a look, of the given providers, the longest due first, and '
    'returns their number per tenant. Leaves out the accounts in p_except_tenants and p_except_accounts. Locks nothing; '
    'claim_doubts then claims per tenant.';
revoke all on function execution.tenants_with_due_doubts(text[], integer, uuid[], uuid[]) from public;
grant execute on function execution.tenants_with_due_doubts(text[], integer, uuid[], uuid[]) to postrider_worker;

-- `p_except_accounts` are accounts of which the resolver has enough claims already. `secret_is_newer`: the secret of
-- the account was changed after the call, so the provider may now see another account than the one that was called.
-- `is_suppressed`: the lead, or another lead with its address, is suppressed.
create or replace function execution.claim_doubts(
    p_tenant_id uuid, p_resolver_id text, p_providers text[], p_limit integer, p_lease interval,
    p_except_accounts uuid[] default '{}')
returns table (
    outbox_id uuid, tenant_id uuid, workspace_id uuid, run_id uuid, job_id uuid, channel text, account_id uuid, provider text,
    idempotency_key text, recipient_id uuid, recipient text, message_hash bytea, reserved_at timestamptz,
    doubted_since timestamptz, quiet_until timestamptz, look integer, looked_at timestamptz, content jsonb, settings jsonb,
    sealed_secret bytea, limits jsonb, secret_is_newer boolean, lead jsonb, is_suppressed boolean, repeated_at timestamptz, echo text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if coalesce(btrim(p_resolver_id), '') = '' then
        raise exception 'a resolver must name itself to claim doubts'
            using errcode = 'invalid_parameter_value', hint = 'Use a name that is new at every start of the process.';
    end if;
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'the limit must lie between 1 and 1000, not %', coalesce(p_limit::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    return query
        with due as (
            select doubt.tenant_id, doubt.outbox_id
              from execution.doubts as doubt
             where doubt.tenant_id = p_tenant_id
               and not doubt.is_for_person
               and doubt.next_look_at <= v_now
               and (doubt.held_until is null or doubt.held_until < v_now)
               and doubt.provider = any (p_providers)
               and doubt.account_id <> all (p_except_accounts)
             order by doubt.next_look_at
             limit p_limit
               for update skip locked
        ), held as (
            update execution.doubts as doubt
               set looks = doubt.looks + 1,
                   held_by = p_resolver_id,
                   held_until = v_now + p_lease
              from due
             where doubt.tenant_id = p_tenant_id
               and doubt.outbox_id = due.outbox_id
         returning doubt.tenant_id, doubt.outbox_id, doubt.account_id, doubt.provider, doubt.looks, doubt.repeated_at
        )
        select item.id, item.tenant_id, item.workspace_id, item.run_id, item.job_id, item.channel, held.account_id,
               held.provider, item.idempotency_key, item.recipient_id, item.recipient, item.message_hash, item.created_at,
               item.in_doubt_since, item.in_doubt_since + run.quiet_time, held.looks, v_now, asset.content, account.settings,
               account.sealed_secret, account.limits, account.secret_set_at > item.created_at,
               case
                   when lead.id is not null
                       then jsonb_build_object('id', lead.id, 'external_id', lead.external_id, 'email', lead.email,
                                               'phone', lead.phone, 'timezone', lead.timezone,
                                               'attributes', lead.attributes)
               end,
               lead.suppressed_at is not null
               or exists (select
                            from execution.leads as other
                           where other.tenant_id = lead.tenant_id
                             and other.workspace_id = lead.workspace_id
                             and lower(other.email) = lower(lead.email)
                             and other.suppressed_at is not null
                             and item.channel = 'email')
               or exists (select
                            from execution.leads as other
                           where other.tenant_id = lead.tenant_id
                             and other.workspace_id = lead.workspace_id
                             and other.phone = lead.phone
                             and other.suppressed_at is not null
                             and item.channel = 'voice'),
               held.repeated_at,
               (select callback.message_id
                  from execution.provider_callbacks as callback
                 where callback.tenant_id = item.tenant_id
                   and callback.account_id = held.account_id
                   and callback.idempotency_key = item.idempotency_key
                   and callback.proves_action
                 order by callback.received_at
                 limit 1)
          from held
               join execution.channel_outbox as item on item.tenant_id = p_tenant_id and item.id = held.outbox_id
               join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
               join execution.assets as asset on asset.tenant_id = item.tenant_id and asset.id = run.asset_id
               left join tenancy.provider_accounts as account
                      on account.tenant_id = p_tenant_id
                     and account.id = held.account_id
               left join execution.leads as lead on lead.tenant_id = item.tenant_id and lead.id = item.recipient_id
         where item.in_doubt_since is not null;
end
$$;
comment on function execution.claim_doubts(uuid, text, text[], integer, interval, uuid[]) is
    'Claims items in doubt of a tenant that are due for a look, of the given providers, for the length of the lease. The number '
    'of the look is the fencing token: a resolver whose claim was taken over changes nothing.';
revoke all on function execution.claim_doubts(uuid, text, text[], integer, interval, uuid[]) from public;
grant execute on function execution.claim_doubts(uuid, text, text[], integer, interval, uuid[]) to postrider_worker;

create or replace function execution.require_held_doubt(p_tenant_id uuid, p_outbox_id uuid, p_resolver_id text, p_look integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform
       from execution.doubts as doubt
      where doubt.tenant_id = p_tenant_id
        and doubt.outbox_id = p_outbox_id
        and doubt.held_by = p_resolver_id
        and doubt.looks = p_look
        for no key update;
    if not found then
        raise exception 'the doubt about % is not held by % under look %', p_outbox_id, coalesce(p_resolver_id, 'null'),
                        coalesce(p_look::text, 'null')
            using errcode = 'PR001',
                  hint = 'Its lease expired and another resolver holds it, or it has been settled.';
    end if;
end
$$;
comment on function execution.require_held_doubt(uuid, uuid, text, integer) is
    'Locks a doubt, and raises PR001 unless the resolver holds it under this look.';
revoke all on function execution.require_held_doubt(uuid, uuid, text, integer) from public;

-- The time of the repeat is stored with the doubt: a repeat is a call that may be recognised late, so the next repeat,
-- by any resolver, waits for the quiet time again. The repeat counts for the day, but the daily limit does not delay
-- it, because the item got its token when it was reserved.
create or replace function execution.take_call_token_for_doubt(
    p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_rate double precision default null,
    p_quota_calls integer default null, p_quota_seconds double precision default null)
returns table (granted boolean, wait_seconds double precision)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    c_ahead constant double precision := 1.0::double precision;
    v_account_id uuid;
    v_limits jsonb;
    v_state execution.account_states;
    v_now timestamptz;
    v_until timestamptz;
    v_rate double precision;
    v_burst double precision;
    v_tokens double precision;
    v_quota integer;
    v_slot bigint;
    v_today date;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    -- repeated_at must survive a crash, whatever the settings of the login are: the next repeat relies on it.
    perform tenancy.require_durable_commit();
    perform execution.require_held_doubt(p_tenant_id, p_outbox_id, p_resolver_id, p_look);
    -- A paused phase starts no call, and repeats none.
    if exists (select
                 from execution.channel_outbox as item
                      join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
                      join execution.campaign_phases as phase
                        on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
                where item.tenant_id = p_tenant_id
                  and item.id = p_outbox_id
                  and phase.status = 'paused')
    then
        return query select false, 30.0::double precision;
        return;
    end if;
    select doubt.account_id, account.limits
      into v_account_id, v_limits
      from execution.doubts as doubt
           left join tenancy.provider_accounts as account
                  on account.tenant_id = doubt.tenant_id
                 and account.id = doubt.account_id
     where doubt.tenant_id = p_tenant_id
       and doubt.outbox_id = p_outbox_id;
    insert into execution.account_states (tenant_id, account_id) values (p_tenant_id, v_account_id) on conflict do nothing;
    select state.*
      into strict v_state
      from execution.account_states as state
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id
       for no key update;
    -- Read the clock after the lock was granted: earlier callers have used up their tokens by then.
    v_now := clock_timestamp();
    v_until := greatest(v_state.wait_until, v_state.circuit_open_until);
    if v_until > v_now then
        return query select false, extract(epoch from v_until - v_now)::double precision;
        return;
    end if;
    granted := true;
    wait_seconds := 0;
    -- Unlike the daily limit, which is the tenant's, the quota is the provider's: it also delays a repeat.
    v_quota := coalesce((v_limits #>> '{quota,calls}')::integer, p_quota_calls);
    if v_quota is not null then
        v_slot := floor(extract(epoch from v_now) * 12
                        / coalesce((v_limits #>> '{quota,seconds}')::double precision, p_quota_seconds))::bigint;
        v_state.quota_counts := execution.roll_quota(v_state.quota_counts, v_state.quota_slot, v_slot);
        v_state.quota_slot := v_slot;
        granted := (select sum(counted.calls) from unnest(v_state.quota_counts) as counted (calls)) < v_quota;
        wait_seconds := case when granted then 0.0::double precision else 60.0::double precision end;
    end if;
    v_rate := coalesce((v_limits ->> 'rate_per_second')::double precision, p_rate);
    if v_rate is not null then
        v_burst := greatest(coalesce((v_limits ->> 'burst')::double precision, v_rate / 5), 1);
        v_tokens := case
                        when v_state.refilled_at is null then v_burst
                        else least(v_burst, v_state.tokens + v_rate * greatest(extract(epoch from v_now - v_state.refilled_at), 0))
                    end;
        granted := granted and v_tokens + v_rate * c_ahead >= 1;
        wait_seconds := greatest((1 - v_tokens) / v_rate - case when granted then 0 else c_ahead end, wait_seconds, 0);
        v_state.tokens := v_tokens - case when granted then 1 else 0 end;
        v_state.refilled_at := v_now;
    end if;
    if v_quota is not null and granted then
        v_state.quota_counts[1] := v_state.quota_counts[1] + 1;
    end if;
    v_today := (v_now at time zone coalesce(v_limits #>> '{hours,time_zone}', v_limits ->> 'time_zone', 'UTC'))::date;
    update execution.account_states as state
       set tokens = v_state.tokens,
           refilled_at = v_state.refilled_at,
           quota_counts = v_state.quota_counts,
           quota_slot = v_state.quota_slot,
           day = v_today,
           used_today = case when v_today is distinct from state.day then 0 else state.used_today end
                        + case when granted then 1 else 0 end
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id;
    if granted then
        update execution.doubts as doubt
           set repeated_at = v_now + wait_seconds * interval '1 second'
         where doubt.tenant_id = p_tenant_id
           and doubt.outbox_id = p_outbox_id;
    end if;
    return next;
end
$$;
comment on function execution.take_call_token_for_doubt(uuid, text, uuid, integer, double precision, integer, double precision) is
    'Grants a call token for repeating the call of an item that the resolver holds, and returns how long to wait '
    'before it is used; or false, and the time until the next try. A paused phase gets none.';
revoke all on function execution.take_call_token_for_doubt(uuid, text, uuid, integer, double precision, integer, double precision) from public;
grant execute on function
    execution.take_call_token_for_doubt(uuid, text, uuid, integer, double precision, integer, double precision)
    to postrider_worker;

create or replace function execution.settle_doubt(
    p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_as text, p_provider_message_id text,
    p_evidence text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    -- Lock the send job, then the item, then the doubt, as every function does.
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.id = (select item.job_id
                        from execution.channel_outbox as item
                       where item.tenant_id = p_tenant_id
                         and item.id = p_outbox_id)
        for no key update;
    perform from execution.channel_outbox as item
      where item.tenant_id = p_tenant_id
        and item.id = p_outbox_id
        for no key update;
    perform execution.require_held_doubt(p_tenant_id, p_outbox_id, p_resolver_id, p_look);
    return execution.settle_in_doubt(p_tenant_id, p_outbox_id, p_as, p_provider_message_id, p_evidence, p_resolver_id);
end
$$;
comment on function execution.settle_doubt(uuid, text, uuid, integer, text, text, text) is
    'Settles an item in doubt that the resolver holds, with its evidence.';
revoke all on function execution.settle_doubt(uuid, text, uuid, integer, text, text, text) from public;
grant execute on function execution.settle_doubt(uuid, text, uuid, integer, text, text, text) to postrider_worker;

create or replace function execution.put_off_doubt(
    p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_next_look_at timestamptz, p_is_for_person boolean,
    p_note text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    perform execution.require_held_doubt(p_tenant_id, p_outbox_id, p_resolver_id, p_look);
    update execution.doubts as doubt
       set held_by = null,
           held_until = null,
           next_look_at = coalesce(p_next_look_at, doubt.next_look_at),
           is_for_person = p_is_for_person,
           note = left(p_note, 2000)
     where doubt.tenant_id = p_tenant_id
       and doubt.outbox_id = p_outbox_id;
    if p_is_for_person then
        insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
        select item.tenant_id, item.run_id, item.job_id, item.id, p_resolver_id, 'item.left_to_a_person', left(p_note, 2000)
          from execution.channel_outbox as item
         where item.tenant_id = p_tenant_id
           and item.id = p_outbox_id;
    end if;
end
$$;
comment on function execution.put_off_doubt(uuid, text, uuid, integer, timestamptz, boolean, text) is
    'Releases an item in doubt that could not be settled yet: a resolver looks again later, or the item waits for a '
    'person.';
revoke all on function execution.put_off_doubt(uuid, text, uuid, integer, timestamptz, boolean, text) from public;
grant execute on function
    execution.put_off_doubt(uuid, text, uuid, integer, timestamptz, boolean, text)
    to postrider_worker;

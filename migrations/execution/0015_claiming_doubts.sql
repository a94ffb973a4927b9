-- How a resolver takes doubts, and its turn at the account: a repeat is a call like any other to the provider.
-- Safe beside running workers: it adds a column without a value, a trigger on accounts, and functions.

-- When the secret was last changed. Other changes of an account do not count.
alter table tenancy.provider_accounts add column secret_set_at timestamptz;
create function tenancy.note_new_secret()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    new.secret_set_at := now();
    return new;
end
$$;
create trigger provider_accounts_secrets_have_a_time
    before update of sealed_secret on tenancy.provider_accounts
    for each row
    when (old.sealed_secret is distinct from new.sealed_secret)
    execute function tenancy.note_new_secret();
grant select (secret_set_at) on tenancy.provider_accounts to postrider_app, postrider_read;

-- Takes items in doubt that are due for a look, of providers that this resolver can ask, for as long as the lease lasts. The
-- number of the look is the fence: whoever comes back after somebody else has taken the item changes nothing.
--
-- `p_except_accounts` are accounts of which this resolver asks enough already. `secret_is_newer`: the account's secret was changed after
-- the call, so whoever is asked now may not be who was called then. `is_suppressed`: nobody wants to hear from us at this address.
create function execution.claim_doubts(
    p_resolver_id text, p_providers text[], p_limit integer, p_lease interval, p_except_accounts uuid[] default '{}')
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
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
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
             where not doubt.is_for_person
               and doubt.next_look_at <= now()
               and (doubt.held_until is null or doubt.held_until < now())
               and doubt.provider = any (p_providers)
               and doubt.account_id <> all (p_except_accounts)
             order by doubt.next_look_at
             limit p_limit
               for update skip locked
        ), held as (
            update execution.doubts as doubt
               set looks = doubt.looks + 1,
                   held_by = p_resolver_id,
                   held_until = now() + p_lease
              from due
             where doubt.tenant_id = any (array[due.tenant_id])
               and doubt.outbox_id = any (array[due.outbox_id])
         returning doubt.tenant_id, doubt.outbox_id, doubt.account_id, doubt.provider, doubt.looks, doubt.repeated_at
        )
        select item.id, item.tenant_id, item.workspace_id, item.run_id, item.job_id, item.channel, held.account_id,
               held.provider, item.idempotency_key, item.recipient_id, item.recipient, item.message_hash, item.created_at,
               item.in_doubt_since, item.in_doubt_since + run.quiet_time, held.looks, now(), asset.content, account.settings,
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
               join execution.channel_outbox as item on item.id = any (array[held.outbox_id])
               join execution.campaign_runs as run on run.id = any (array[item.run_id])
               join execution.assets as asset on asset.tenant_id = item.tenant_id and asset.id = run.asset_id
               left join tenancy.provider_accounts as account
                      on account.tenant_id = held.tenant_id
                     and account.id = held.account_id
               left join execution.leads as lead on lead.tenant_id = item.tenant_id and lead.id = item.recipient_id
         where item.in_doubt_since is not null;
end
$$;


-- A turn for repeating the call of an item that this resolver holds: how long to wait before it is used; or no turn, and how long there
-- will be none. The turn is noted with the doubt: a repeat is a call that may be recognised late, so the next one waits for
-- the quiet time anew, whoever makes it. It is counted for the day, and the day does not hold it up: the item had its turn when it was reserved.
create function execution.take_turn_for_doubt(
    p_resolver_id text, p_tenant_id uuid, p_outbox_id uuid, p_look integer, p_rate double precision default null)
returns table (granted boolean, wait_seconds double precision)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    c_ahead constant double precision := 1.0;
    v_account_id uuid;
    v_limits jsonb;
    v_state execution.account_states;
    v_now timestamptz;
    v_until timestamptz;
    v_rate double precision;
    v_burst double precision;
    v_tokens double precision;
    v_today date;
begin
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    -- A note that a crash may take back is none, whatever the login is set to: the next repeat relies on it.
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    perform execution.require_held_doubt(p_tenant_id, p_outbox_id, p_resolver_id, p_look);
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
    -- After the lock: whoever came before has used what was there.
    v_now := clock_timestamp();
    v_until := greatest(v_state.wait_until, v_state.circuit_open_until);
    if v_until > v_now then
        return query select false, extract(epoch from v_until - v_now)::double precision;
        return;
    end if;
    granted := true;
    wait_seconds := 0;
    v_rate := coalesce((v_limits ->> 'rate_per_second')::double precision, p_rate);
    if v_rate is not null then
        v_burst := greatest(coalesce((v_limits ->> 'burst')::double precision, v_rate / 5), 1);
        v_tokens := case
                        when v_state.refilled_at is null then v_burst
                        else least(v_burst, v_state.tokens + v_rate * greatest(extract(epoch from v_now - v_state.refilled_at), 0))
                    end;
        granted := v_tokens + v_rate * c_ahead >= 1;
        wait_seconds := greatest((1 - v_tokens) / v_rate - case when granted then 0 else c_ahead end, 0);
        v_state.tokens := v_tokens - case when granted then 1 else 0 end;
        v_state.refilled_at := v_now;
    end if;
    v_today := (v_now at time zone coalesce(v_limits #>> '{hours,time_zone}', v_limits ->> 'time_zone', 'UTC'))::date;
    update execution.account_states as state
       set tokens = v_state.tokens,
           refilled_at = v_state.refilled_at,
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

revoke all on all functions in schema execution from public;
revoke all on function tenancy.note_new_secret() from public;
grant execute on function
    execution.claim_doubts(text, text[], integer, interval, uuid[]),
    execution.take_turn_for_doubt(text, uuid, uuid, integer, double precision)
    to postrider_worker;

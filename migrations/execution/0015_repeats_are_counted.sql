-- A repeat by the resolver is a call like any other to the provider: it takes a turn at the account.
-- Safe beside running workers: it adds a function and touches no table.

-- A turn for repeating the call of an item that this resolver holds: how long to wait before it is used; or no turn, and how long there
-- will be none. It is counted for the day, and the day does not hold it up: the item had its turn when it was reserved.
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
    return next;
end
$$;

revoke all on all functions in schema execution from public;
grant execute on function execution.take_turn_for_doubt(text, uuid, uuid, integer, double precision) to postrider_worker;

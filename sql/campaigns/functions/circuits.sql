-- Circuit breakers of provider accounts.

create or replace function execution.break_circuit(
    p_tenant_id uuid, p_account_id uuid, p_actor text, p_reason text, p_until_secret boolean)
returns double precision
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_now constant timestamptz := now();
    v_until timestamptz;
begin
    update execution.account_states as state
       set circuit_open_until = v_now + case
                                            -- Only a new secret ends this.
                                            when p_until_secret then interval '10 years'
                                            else least(30 * 2 ^ least(state.circuit_openings, 10), 600) * interval '1 second'
                                        end,
           circuit_openings = state.circuit_openings + 1,
           circuit_reason = left(p_reason, 500),
           probe_job_id = null,
           probe_until = null
     where state.tenant_id = p_tenant_id
       and state.account_id = p_account_id
       and (state.circuit_open_until is null or state.circuit_open_until <= v_now
            or p_until_secret and state.circuit_open_until < v_now + interval '1 year')
 returning state.circuit_open_until
      into v_until;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        values (p_tenant_id, p_actor, 'account.circuit_opened', 'account:' || p_account_id,
                case when p_until_secret then 'until its secret is changed: ' || left(p_reason, 500) else
                'until ' || to_char(v_until at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"') || ': ' || left(p_reason, 500) end);
    else
        select state.circuit_open_until
          into v_until
          from execution.account_states as state
         where state.tenant_id = p_tenant_id
           and state.account_id = p_account_id;
    end if;
    return extract(epoch from v_until - v_now)::double precision;
end
$$;
comment on function execution.break_circuit(uuid, uuid, text, text, boolean) is
    'Opens the circuit of an account for 30 seconds, doubled at each further opening up to ten minutes, until a call '
    'is answered; or until the secret is changed, because the provider refused the login and may lock the account. Otherwise an '
    'open circuit is not changed. Returns the number of seconds for which it is open.';
revoke all on function execution.break_circuit(uuid, uuid, text, text, boolean) from public;

create or replace function execution.open_circuit(
    p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_reason text,
    p_until_secret boolean default false)
returns double precision
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_account_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    v_account_id := execution.held_account(p_tenant_id, p_worker_id, p_job_id, p_attempt, p_failover);
    return execution.break_circuit(p_tenant_id, v_account_id, p_worker_id, p_reason, p_until_secret);
end
$$;
comment on function execution.open_circuit(uuid, text, uuid, integer, boolean, text, boolean) is
    'Opens the circuit of the account of a send job that the worker holds, as break_circuit does.';
revoke all on function execution.open_circuit(uuid, text, uuid, integer, boolean, text, boolean) from public;
grant execute on function execution.open_circuit(uuid, text, uuid, integer, boolean, text, boolean) to postrider_worker;

create or replace function execution.wake_jobs_of_circuit(p_tenant_id uuid, p_account_id uuid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_now constant timestamptz := now();
begin
    -- Ordered by id, and without send jobs that a claim has locked.
    with waiting as (
        select job.tenant_id, job.id
          from execution.job_queue as job
               join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
         where job.tenant_id = p_tenant_id
           and job.status = 'queued'
           and job.waits_for = 'circuit'
           and job.run_after > v_now
           and run.provider_account_id = p_account_id
         order by job.id
           for no key update of job skip locked
    )
    update execution.job_queue as job
       set run_after = v_now
      from waiting
     where job.tenant_id = p_tenant_id
       and job.id = waiting.id;
end
$$;
comment on function execution.wake_jobs_of_circuit(uuid, uuid) is
    'Makes the send jobs due that wait for the circuit of an account.';
revoke all on function execution.wake_jobs_of_circuit(uuid, uuid) from public;

-- The new secret is tried by one call: if the provider refuses it too, many tries at once could lock the account.
create or replace function execution.try_new_secret(p_tenant_id uuid, p_account_id uuid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_now constant timestamptz := now();
begin
    update execution.account_states as state
       set circuit_open_until = v_now,
           circuit_openings = 0,
           probe_job_id = null,
           probe_until = null
     where state.tenant_id = p_tenant_id
       and state.account_id = p_account_id
       and state.circuit_open_until > v_now;
    if found then
        perform execution.wake_jobs_of_circuit(p_tenant_id, p_account_id);
    end if;
end
$$;
comment on function execution.try_new_secret(uuid, uuid) is
    'Half opens the circuit of an account whose secret was changed: the next call is a probe.';
revoke all on function execution.try_new_secret(uuid, uuid) from public;

create or replace function execution.close_circuit(
    p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_account_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    v_account_id := execution.held_account(p_tenant_id, p_worker_id, p_job_id, p_attempt, p_failover);
    update execution.account_states as state
       set circuit_open_until = null,
           circuit_reason = null,
           circuit_openings = 0,
           probe_job_id = null,
           probe_until = null
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id
       and state.circuit_open_until is not null;
    if not found then
        return;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_worker_id, 'account.circuit_closed', 'account:' || v_account_id);
    perform execution.wake_jobs_of_circuit(p_tenant_id, v_account_id);
end
$$;
comment on function execution.close_circuit(uuid, text, uuid, integer, boolean) is
    'Closes the circuit of an account after a call was answered. Send jobs that waited for it are due at once.';
revoke all on function execution.close_circuit(uuid, text, uuid, integer, boolean) from public;
grant execute on function execution.close_circuit(uuid, text, uuid, integer, boolean) to postrider_worker;

create or replace function execution.read_account_states(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[])
returns table (tenant_id uuid, account_id uuid, wait_seconds double precision, circuit_seconds double precision)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    select distinct state.tenant_id,
           state.account_id,
           extract(epoch from nullif(greatest(state.wait_until, now()), now()) - now())::double precision,
           extract(epoch from state.circuit_open_until - now())::double precision
      from unnest(p_tenant_ids, p_job_ids) as held (tenant_id, id)
           join execution.job_queue as job on job.tenant_id = held.tenant_id and job.id = held.id
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
           join execution.account_states as state
             on state.tenant_id = run.tenant_id
            and state.account_id in (run.provider_account_id, run.failover_account_id)
     where job.status = 'locked'
       and job.locked_by = p_worker_id
$$;
comment on function execution.read_account_states(uuid[], text, uuid[]) is
    'Returns the waits and circuits of the accounts of held send jobs, of any number of tenants, so that a process learns what other processes '
    'found.';
revoke all on function execution.read_account_states(uuid[], text, uuid[]) from public;
grant execute on function execution.read_account_states(uuid[], text, uuid[]) to postrider_worker;

create or replace function execution.measure_circuits()
returns table (provider text, open bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select account.provider, count(*)
      from execution.account_states as state
           join tenancy.provider_accounts as account
             on account.tenant_id = state.tenant_id and account.id = state.account_id
     where state.circuit_open_until is not null
     group by account.provider
$$;
comment on function execution.measure_circuits() is
    'Counts the circuits that are not closed, by provider, over all tenants, for the metrics.';
revoke all on function execution.measure_circuits() from public;
grant execute on function execution.measure_circuits() to postrider_worker;

-- Send jobs that a worker gives back before their end. This uses up no attempt.

create or replace function execution.release_job(
    p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval default interval '0')
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_due_at constant timestamptz := now() + p_retry_after;
    v_phase_status text;
    v_run_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform execution.require_held(p_tenant_id, p_job_id, p_worker_id, p_attempt);
    perform execution.doubt_leftovers(p_tenant_id, p_job_id, p_worker_id);
    -- With the share lock, a concurrent resume waits and then finds the send job in its new place. A run of single messages has no phase.
    select phase.status
      into v_phase_status
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
           join execution.campaign_phases as phase
             on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
       for share of phase;
    update execution.job_queue as job
       set status = 'queued',
           attempts = job.attempts - 1,
           locked_by = null,
           locked_at = null,
           run_after = case v_phase_status when 'paused' then 'infinity' else greatest(job.run_after, v_due_at) end
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
 returning job.run_id
      into v_run_id;
    perform execution.audit(p_tenant_id, null, null, v_run_id, p_job_id, null, p_worker_id, 'job.released', null);
end
$$;
comment on function execution.release_job(uuid, uuid, text, integer, interval) is
    'Releases a send job before its end: the worker stops, cannot do this kind of send job, or the phase is paused. A send job of a '
    'paused phase waits for the phase.';
revoke all on function execution.release_job(uuid, uuid, text, integer, interval) from public;
grant execute on function execution.release_job(uuid, uuid, text, integer, interval) to postrider_worker;

create or replace function execution.put_off_job(
    p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_wait interval, p_why text, p_note text,
    p_whole_run boolean, p_limits jsonb default null)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_now constant timestamptz := now();
    v_until timestamptz := v_now + p_wait;
    v_limits jsonb;
    v_run_id uuid;
    v_others integer := 0;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform execution.require_held(p_tenant_id, p_job_id, p_worker_id, p_attempt);
    -- Lock the account before reading its limits: this waits for a concurrent change to commit.
    select account.limits
      into v_limits
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
           join tenancy.provider_accounts as account
             on account.tenant_id = run.tenant_id and account.id = run.provider_account_id
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
       for share of account;
    if p_why in ('rate', 'daily', 'hours') and v_limits <> p_limits then
        v_until := v_now;
    end if;
    perform execution.doubt_leftovers(p_tenant_id, p_job_id, p_worker_id);
    update execution.job_queue as job
       set status = 'queued',
           attempts = job.attempts - 1,
           locked_by = null,
           locked_at = null,
           run_after = greatest(job.run_after, v_until),
           waits_for = p_why
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
 returning job.run_id
      into v_run_id;
    if p_whole_run then
        with waiting as (
            select job.tenant_id, job.id
              from execution.job_queue as job
             where job.tenant_id = p_tenant_id
               and job.run_id = v_run_id
               and job.status = 'queued'
               -- Skip send jobs that another worker has just put off for the same reason.
               and job.run_after < v_until - interval '1 second'
             order by job.id
               for no key update skip locked
        )
        update execution.job_queue as job
           set run_after = v_until,
               waits_for = p_why
          from waiting
         where job.tenant_id = p_tenant_id
           and job.id = waiting.id;
        get diagnostics v_others = row_count;
    end if;
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action, note)
    values (p_tenant_id, v_run_id, p_job_id, p_worker_id, 'job.put_off',
            'until ' || to_char(v_until at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"') || ': ' || left(p_note, 500)
            || case when v_others > 0 then '; with ' || v_others || ' more send jobs of the run' else '' end);
    return v_others + 1;
end
$$;
comment on function execution.put_off_job(uuid, uuid, text, integer, interval, text, text, boolean, jsonb) is
    'Releases a send job until its account may be called again, and with p_whole_run the queued send jobs of its run too. If '
    'the limits of the account are no longer p_limits, the send job is due at once and the worker decides again. Returns '
    'the number of send jobs that wait.';
revoke all on function execution.put_off_job(uuid, uuid, text, integer, interval, text, text, boolean, jsonb) from public;
grant execute on function
    execution.put_off_job(uuid, uuid, text, integer, interval, text, text, boolean, jsonb)
    to postrider_worker;

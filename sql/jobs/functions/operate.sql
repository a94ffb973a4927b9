-- Operations of people on job runs: retry, cancel, wait for the end, and resolve dead letters.

create or replace function jobs.retry_run(p_tenant_id uuid, p_id uuid, p_actor text)
returns table (outcome text, run_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_run jobs.job_runs;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time('15s');
    select * into v_run
      from jobs.job_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_id
       for update;
    if not found then
        return;
    end if;
    if v_run.status <> 'failed' then
        return query select v_run.status, v_run.id;
        return;
    end if;
    for v_try in 1 .. 100 loop
        begin
            update jobs.job_runs as run
               set status = 'running',
                   retry_count = run.retry_count + 1,
                   retry_at = null,
                   started_at = v_now,
                   completed_at = null
             where run.tenant_id = p_tenant_id
               and run.id = p_id;
            perform jobs.audit(p_tenant_id, p_actor, 'run.retried', 'job_run:' || p_id, v_run.lock_key);
            return query select 'retried', p_id;
            return;
        exception
            when unique_violation then
                return query
                    select 'taken', other.run_id
                      from jobs.run_with_lock_key(p_tenant_id, v_run.lock_key) as other;
                if found then
                    return;
                end if;
                -- The run that had the key has just ended without success: try again.
        end;
    end loop;
    raise exception 'the lock key % passes from run to run too often; try again', v_run.lock_key using errcode = 'lock_not_available';
end
$$;
comment on function jobs.retry_run(uuid, uuid, text) is
    'Runs a failed run again at once. Returns retried; running, completed or cancelled if the run is not failed; '
    'taken and the id of the other run if another run has the lock key; no row if the run does not exist.';
revoke all on function jobs.retry_run(uuid, uuid, text) from public;
grant execute on function jobs.retry_run(uuid, uuid, text) to postrider_app;

create or replace function jobs.cancel_run(p_tenant_id uuid, p_id uuid, p_note text, p_actor text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now    constant timestamptz := now();
    v_note   constant text := nullif(btrim(p_note), '');
    v_status text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time('15s');
    select run.status
      into v_status
      from jobs.job_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_id
       for update;
    if v_status is null or v_status in ('completed', 'cancelled') then
        return v_status;
    end if;
    update jobs.job_runs as run
       set status = 'cancelled',
           completed_at = coalesce(run.completed_at, v_now),
           error_message = coalesce(case when run.status = 'failed' then run.error_message end,
                                    concat_ws(': ', 'cancelled by ' || p_actor, v_note)),
           retry_at = null,
           locked_by = null,
           heartbeat_at = null
     where run.tenant_id = p_tenant_id
       and run.id = p_id;
    perform jobs.resolve_source(p_tenant_id, 'job_run', p_id, p_actor, concat_ws(': ', 'the run was cancelled', v_note));
    perform jobs.audit(p_tenant_id, p_actor, 'run.cancelled', 'job_run:' || p_id, v_note);
    return 'cancelled';
end
$$;
comment on function jobs.cancel_run(uuid, uuid, text, text) is
    'Cancels a run and returns its status: cancelled, completed if the run had completed, null if it does not '
    'exist. A runner that holds the run cannot end it any more, and learns of the cancellation from its next '
    'heartbeat.';
revoke all on function jobs.cancel_run(uuid, uuid, text, text) from public;
grant execute on function jobs.cancel_run(uuid, uuid, text, text) to postrider_app;

create or replace function jobs.which_ended(p_tenant_ids uuid[], p_ids uuid[])
returns table (tenant_id uuid, id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select run.tenant_id, run.id
      from unnest(p_tenant_ids, p_ids) as given (tenant_id, id)
      join jobs.job_runs as run on run.tenant_id = given.tenant_id and run.id = given.id
     where run.status <> 'running'
       and run.retry_at is null
       and (run.tenant_id = (select tenancy.current_tenant_id()) or (select tenancy.acts_for_server()))
$$;
comment on function jobs.which_ended(uuid[], uuid[]) is
    'Returns those of the runs that have ended: runs of the tenant of the context, or of all tenants for the server.';
revoke all on function jobs.which_ended(uuid[], uuid[]) from public;
grant execute on function jobs.which_ended(uuid[], uuid[]) to postrider_app;

create or replace function jobs.resolve_sync_error(p_tenant_id uuid, p_id uuid, p_note text, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_error jobs.sync_errors;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if coalesce(btrim(p_note), '') = '' then
        raise exception 'p_note must not be empty; it tells how the error was resolved' using errcode = 'invalid_parameter_value';
    end if;
    select *
      into v_error
      from jobs.sync_errors as error
     where error.tenant_id = p_tenant_id
       and error.id = p_id
       for update;
    if not found then
        return false;
    end if;
    if not v_error.is_resolved then
        perform jobs.resolve_source(p_tenant_id, v_error.source_entity_type, v_error.source_entity_id, p_actor, p_note);
        perform jobs.audit(p_tenant_id, p_actor, 'sync_error.resolved', 'sync_error:' || p_id, p_note);
    end if;
    return true;
end
$$;
comment on function jobs.resolve_sync_error(uuid, uuid, text, text) is
    'Resolves a dead letter. Resolving it again changes nothing. Returns false if it does not exist.';
revoke all on function jobs.resolve_sync_error(uuid, uuid, text, text) from public;
grant execute on function jobs.resolve_sync_error(uuid, uuid, text, text) to postrider_app;

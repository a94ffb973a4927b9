-- Operations of people on job runs: retry, cancel, wait for the end, and resolve dead letters.

create or replace function jobs.retry_run(p_id uuid, p_actor text)
returns table (outcome text, run_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_run       jobs.job_runs;
begin
    perform jobs.keep_moving();
    select * into v_run
      from jobs.job_runs as run
     where run.tenant_id = v_tenant_id
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
                   started_at = now(),
                   completed_at = null
             where run.id = p_id;
            insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
            values (v_tenant_id, p_actor, 'run.retried', 'job_run:' || p_id, v_run.lock_key);
            return query select 'retried', p_id;
            return;
        exception
            when unique_violation then
                -- The predicates are those of the unique indexes, as in open_run.
                return query
                    select 'taken', other.id
                      from jobs.job_runs as other
                     where other.tenant_id is not distinct from v_tenant_id
                       and other.lock_key = v_run.lock_key
                       and (other.status = 'running' or other.retry_at is not null)
                       and other.id <> p_id;
                if found then
                    return;
                end if;
                return query
                    select 'taken', other.id
                      from jobs.job_runs as other
                     where other.tenant_id is not distinct from v_tenant_id
                       and other.lock_key = v_run.lock_key
                       and not other.is_forced and (other.status in ('running', 'completed') or other.retry_at is not null)
                       and other.id <> p_id;
                if found then
                    return;
                end if;
                -- The run that had the key has just ended without success: try again.
        end;
    end loop;
    raise exception 'the lock key % changes hands too often; try again', v_run.lock_key using errcode = 'lock_not_available';
end
$$;
comment on function jobs.retry_run(uuid, text) is
    'Runs a failed run again at once. Returns retried; running, completed or cancelled if the run is not failed; '
    'taken and the id of the other run if another run has the lock key; no row if the run does not exist.';
revoke all on function jobs.retry_run(uuid, text) from public;
grant execute on function jobs.retry_run(uuid, text) to postrider_app;

create or replace function jobs.cancel_run(p_id uuid, p_note text, p_actor text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_status    text;
begin
    perform jobs.keep_moving();
    select run.status
      into v_status
      from jobs.job_runs as run
     where run.tenant_id = v_tenant_id
       and run.id = p_id
       for update;
    if v_status is null or v_status in ('completed', 'cancelled') then
        return v_status;
    end if;
    update jobs.job_runs as run
       set status = 'cancelled',
           completed_at = coalesce(run.completed_at, now()),
           error_message = coalesce(case when run.status = 'failed' then run.error_message end,
                                    concat_ws(': ', 'cancelled by ' || p_actor, nullif(btrim(p_note), ''))),
           retry_at = null,
           locked_by = null,
           heartbeat_at = null
     where run.id = p_id;
    perform jobs.resolve_source(v_tenant_id, array[p_id], p_actor, concat_ws(': ', 'the run was cancelled', nullif(btrim(p_note), '')));
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'run.cancelled', 'job_run:' || p_id, nullif(btrim(p_note), ''));
    return 'cancelled';
end
$$;
comment on function jobs.cancel_run(uuid, text, text) is
    'Cancels a run and returns its status: cancelled, completed if the run had completed, null if it does not '
    'exist. A runner that holds the run cannot end it any more, and learns of the cancellation from its next '
    'heartbeat.';
revoke all on function jobs.cancel_run(uuid, text, text) from public;
grant execute on function jobs.cancel_run(uuid, text, text) to postrider_app;

create or replace function jobs.which_ended(p_ids uuid[])
returns setof uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select run.id
      from jobs.job_runs as run
     where run.id = any (p_ids)
       and run.status <> 'running'
       and run.retry_at is null
       and (run.tenant_id = (select tenancy.current_tenant_id()) or (select tenancy.acts_for_server()))
$$;
comment on function jobs.which_ended(uuid[]) is
    'Returns the ids of those runs that have ended: runs of the tenant of the context, or of all tenants for the '
    'server.';
revoke all on function jobs.which_ended(uuid[]) from public;
grant execute on function jobs.which_ended(uuid[]) to postrider_app;

create or replace function jobs.resolve_sync_error(p_id uuid, p_note text, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    if coalesce(btrim(p_note), '') = '' then
        raise exception 'say how it was resolved' using errcode = 'invalid_parameter_value';
    end if;
    update jobs.sync_errors as error
       set is_resolved = true,
           resolved_at = now(),
           resolved_by = p_actor,
           resolution_note = p_note,
           updated_at = now()
     where error.tenant_id = v_tenant_id
       and error.id = p_id
       and not error.is_resolved;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        values (v_tenant_id, p_actor, 'sync_error.resolved', 'sync_error:' || p_id, p_note);
    end if;
    return exists (select from jobs.sync_errors as error where error.tenant_id = v_tenant_id and error.id = p_id);
end
$$;
comment on function jobs.resolve_sync_error(uuid, text, text) is
    'Resolves a dead letter. Resolving it again changes nothing. Returns false if it does not exist.';
revoke all on function jobs.resolve_sync_error(uuid, text, text) from public;
grant execute on function jobs.resolve_sync_error(uuid, text, text) to postrider_app;

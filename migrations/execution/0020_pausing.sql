-- A phase that is paused reserves nothing more, from the moment its pause is answered.
-- Safe beside running workers: functions are replaced whole. A worker of before takes `paused` for a lost job and leaves it; it
-- comes back when its lock is stale.

-- Reserves items: one row each, with its key, for jobs that this worker holds. A key that exists is never reserved again.
--
-- A window is a stretch of a job's items: `p_first[n]` is the place of the first, `p_counts[n]` how many. The other arrays
-- have one entry per item, window after window. An item that will not be called has its verdict already: `p_verdicts` is
-- then `failed` or `skipped`, and `p_reasons` says why.
--
-- The answer has a row per item, whose verdict is `reserved`, or the state in which the item is: ended now, or found
-- ended or reserved from before. A window of a job that the worker does not hold any more comes back as one row
-- with the verdict `lost`.
--
-- It is written for the usual case, in which no key exists: a plain insert is cheaper than one that is prepared for conflicts.
-- If there is one, everything is inserted again with care.
--
-- A window whose phase is not in progress comes back as one row with the verdict `paused`.
create or replace function execution.begin_outbox_items(
    p_worker_id text,
    p_job_ids uuid[],
    p_attempts integer[],
    p_first integer[],
    p_counts integer[],
    p_outbox_ids uuid[],
    p_recipients text[],
    p_message_hashes bytea[],
    p_verdicts text[],
    p_reasons text[])
returns table (job_id uuid, outbox_id uuid, item_id uuid, idempotency_key text, verdict text)
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
    v_job record;
    v_prefix text;
    v_suffix text;
    v_suppressed uuid[];
    v_end integer := 0;
    v_paused uuid[];
    v_open integer[] := '{}';
    -- One entry per window that is still held: its number, where its items end, and what they have in common.
    v_held integer[] := '{}';
    v_ends integer[] := '{}';
    v_tenant_ids uuid[] := '{}';
    v_workspace_ids uuid[] := '{}';
    v_run_ids uuid[] := '{}';
    v_channels text[] := '{}';
    v_providers text[] := '{}';
    -- One entry per item.
    v_items uuid[] := '{}';
    v_keys text[] := '{}';
    v_verdicts text[] := p_verdicts;
    v_reasons text[] := p_reasons;
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    -- A reservation that a crash may take back is none, whatever the login is set to.
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    -- A pause is seen by what each statement sees anew.
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'items are reserved at the isolation level read committed, not %', current_setting('transaction_isolation')
            using errcode = 'invalid_parameter_value', hint = 'Begin with: begin isolation level read committed.';
    end if;
    if not array_remove(p_verdicts, null) <@ array['failed', 'skipped'] then
        raise exception 'an item that is not called is failed or skipped' using errcode = 'invalid_parameter_value';
    end if;
    for n in 1..cardinality(p_job_ids) loop
        -- Shared, so that nobody takes the job away while its reservations are being written.
        select job.tenant_id, job.workspace_id, job.run_id, run.channel, run.provider, run.key_part, run.scheduled_for,
               job.item_ids[p_first[n] : p_first[n] + p_counts[n] - 1] as items
          into v_job
          from execution.job_queue as job
               join execution.campaign_runs as run on run.id = job.run_id
         where job.id = p_job_ids[n]
           and job.status = 'locked'
           and job.locked_by = p_worker_id
           and job.attempts = p_attempts[n]
           for share of job;
        if not found then
            v_items := v_items || array_fill(null::uuid, array[p_counts[n]]);
            v_keys := v_keys || array_fill(null::text, array[p_counts[n]]);
            v_end := v_end + p_counts[n];
            return query select p_job_ids[n], null::uuid, null::uuid, null::text, 'lost'::text;
            continue;
        end if;
        if cardinality(v_job.items) is distinct from p_counts[n] then
            raise exception 'job % has no items % to %', p_job_ids[n], p_first[n], p_first[n] + p_counts[n] - 1
                using errcode = 'invalid_parameter_value';
        end if;
        v_suppressed := array(
            select lead.id
              from execution.leads as lead
             where lead.tenant_id = v_job.tenant_id
               and lead.id = any (v_job.items)
               and lead.suppressed_at is not null);
        for i in 1..p_counts[n] * least(cardinality(v_suppressed), 1) loop
            if v_job.items[i] = any (v_suppressed) and v_verdicts[v_end + i] is null then
                v_verdicts[v_end + i] := 'skipped';
                v_reasons[v_end + i] := 'the lead is suppressed';
            end if;
        end loop;
        v_end := v_end + p_counts[n];
        v_held := v_held || n;
        v_ends := v_ends || v_end;
        v_tenant_ids := v_tenant_ids || v_job.tenant_id;
        v_workspace_ids := v_workspace_ids || v_job.workspace_id;
        v_run_ids := v_run_ids || v_job.run_id;
        v_channels := v_channels || v_job.channel;
        v_providers := v_providers || v_job.provider;
        v_items := v_items || v_job.items;
        -- outbox_key, with what a window has in common worked out once.
        v_prefix := v_job.run_id::text || '|';
        v_suffix := '|' || v_job.key_part || '|' || execution.key_time(v_job.scheduled_for);
        v_keys := v_keys || array(
            select encode(sha256(convert_to(v_prefix || item.id::text || v_suffix, 'UTF8')), 'hex')
              from unnest(v_job.items) as item (id));
    end loop;

    -- Asked after the last job was locked, in a statement of its own that sees what has committed by now: a pause that has
    -- committed is obeyed, and one that comes later waits for these locks before it answers.
    v_paused := array(
        select run.id
          from execution.campaign_runs as run
               join execution.campaign_phases as phase
                 on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
         where run.id = any (v_run_ids)
           and phase.status <> 'in_progress');
    if cardinality(v_paused) > 0 then
        for i in 1..cardinality(v_held) loop
            if v_run_ids[i] = any (v_paused) then
                return query select p_job_ids[v_held[i]], null::uuid, null::uuid, null::text, 'paused'::text;
            else
                v_open := v_open || i;
            end if;
        end loop;
        v_ends := array(select v_ends[i] from unnest(v_open) as i);
        v_tenant_ids := array(select v_tenant_ids[i] from unnest(v_open) as i);
        v_workspace_ids := array(select v_workspace_ids[i] from unnest(v_open) as i);
        v_run_ids := array(select v_run_ids[i] from unnest(v_open) as i);
        v_channels := array(select v_channels[i] from unnest(v_open) as i);
        v_providers := array(select v_providers[i] from unnest(v_open) as i);
        v_held := array(select v_held[i] from unnest(v_open) as i);
    end if;

    begin
        insert into execution.channel_outbox
               (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
                status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
        select item.id, held.tenant_id, held.workspace_id, held.run_id, p_job_ids[held.n], held.channel, held.provider,
               item.item_id, item.recipient, item.key, coalesce(item.verdict, 'queued'),
               item.verdict is not distinct from 'skipped', left(item.reason, 2000), p_worker_id, p_attempts[held.n],
               item.message_hash, case when item.verdict is not null then now() end
          from unnest(v_held, v_ends, v_tenant_ids, v_workspace_ids, v_run_ids, v_channels, v_providers)
                   as held (n, last, tenant_id, workspace_id, run_id, channel, provider)
               cross join lateral (select held.last - p_counts[held.n] + 1 as first offset 0) as place
               cross join lateral unnest(
                   p_outbox_ids[first : last], v_items[first : last], v_keys[first : last], p_recipients[first : last],
                   p_message_hashes[first : last], v_verdicts[first : last], v_reasons[first : last])
                   as item (id, item_id, key, recipient, message_hash, verdict, reason);
        return query
            select p_job_ids[held.n], item.id, item.item_id, item.key, coalesce(item.verdict, 'reserved')
              from unnest(v_held, v_ends) as held (n, last)
                   cross join lateral (select held.last - p_counts[held.n] + 1 as first offset 0) as place
                   cross join lateral unnest(
                       p_outbox_ids[first : last], v_items[first : last], v_keys[first : last], v_verdicts[first : last])
                       as item (id, item_id, key, verdict);
        return;
    exception when unique_violation then
        -- Nothing was inserted, and nothing answered.
    end;

    insert into execution.channel_outbox
           (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
            status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
    select item.id, held.tenant_id, held.workspace_id, held.run_id, p_job_ids[held.n], held.channel, held.provider,
           item.item_id, item.recipient, item.key, coalesce(item.verdict, 'queued'),
           item.verdict is not distinct from 'skipped', left(item.reason, 2000), p_worker_id, p_attempts[held.n],
           item.message_hash, case when item.verdict is not null then now() end
      from unnest(v_held, v_ends, v_tenant_ids, v_workspace_ids, v_run_ids, v_channels, v_providers)
               as held (n, last, tenant_id, workspace_id, run_id, channel, provider)
           cross join lateral (select held.last - p_counts[held.n] + 1 as first offset 0) as place
           cross join lateral unnest(
               p_outbox_ids[first : last], v_items[first : last], v_keys[first : last], p_recipients[first : last],
               p_message_hashes[first : last], v_verdicts[first : last], v_reasons[first : last])
               as item (id, item_id, key, recipient, message_hash, verdict, reason)
        on conflict (tenant_id, workspace_id, idempotency_key) do nothing;

    -- Whose row is it? One under the very id that this caller made up is its own: from a moment ago, or it has asked before,
    -- its commit went through, and the answer was lost on the way. Nobody can have called for it, because nobody was told.
    return query
        select item.job_id, item.id, item.recipient_id, item.idempotency_key,
               case
                   when item.status = 'queued' and item.id = wanted.id and item.reserved_by = p_worker_id
                        and item.attempt = p_attempts[held.n] and item.in_doubt_since is null
                        then 'reserved'
                   else item.status
               end
          from unnest(v_held, v_ends, v_tenant_ids, v_workspace_ids) as held (n, last, tenant_id, workspace_id)
               cross join lateral (select held.last - p_counts[held.n] + 1 as first offset 0) as place
               cross join lateral unnest(p_outbox_ids[first : last], v_keys[first : last]) as wanted (id, key)
               join execution.channel_outbox as item
                 on item.tenant_id = any (array[held.tenant_id])
                and item.workspace_id = any (array[held.workspace_id])
                and item.idempotency_key = any (array[wanted.key]);
end
$$;

-- Hands a job back before its end: the worker is stopping, cannot do this kind of job, or its phase is paused. It burns no attempt. A
-- job of a phase that is paused waits for the phase.
create or replace function execution.release_job(
    p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval default interval '0')
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_phase_status text;
begin
    perform execution.require_held(p_job_id, p_worker_id, p_attempt);
    perform execution.doubt_leftovers(p_job_id, p_worker_id);
    -- Shared: whoever resumes the phase meanwhile waits, and then finds the job where it was put.
    select phase.status
      into strict v_phase_status
      from execution.job_queue as job
           join execution.campaign_runs as run on run.id = job.run_id
           join execution.campaign_phases as phase
             on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
     where job.id = p_job_id
       for share of phase;
    update execution.job_queue
       set status = 'queued',
           attempts = attempts - 1,
           locked_by = null,
           locked_at = null,
           run_after = case v_phase_status
                           when 'paused' then 'infinity'
                           else greatest(run_after, now() + p_retry_after)
                       end
     where id = p_job_id;
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action)
    select job.tenant_id, job.run_id, job.id, p_worker_id, 'job.released'
      from execution.job_queue as job
     where job.id = p_job_id;
end
$$;

-- Takes jobs, tenant by tenant in turns, as before. A stale job of a phase that is paused goes back to wait for the phase.
create or replace function execution.claim_queued_jobs(
    p_worker_id text, p_limit integer default 10, p_except uuid[] default '{}', p_except_runs uuid[] default '{}')
returns table (
    job_id uuid, tenant_id uuid, workspace_id uuid, run_id uuid, job_type text, attempts integer, max_attempts integer,
    item_ids uuid[], channel text, asset_id uuid, provider_account_id uuid, provider text, scheduled_for timestamptz,
    key_part text, correlation_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_job record;
    v_run_id uuid;
    v_run record;
    v_tenants uuid[];
    v_tenant uuid;
    v_share integer;
    v_found uuid[];
    v_ids uuid[] := '{}';
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    if coalesce(btrim(p_worker_id), '') = '' then
        raise exception 'a worker must name itself to claim jobs'
            using errcode = 'invalid_parameter_value', hint = 'Use a name that is new at every start of the process.';
    end if;
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'the limit must lie between 1 and 1000, not %', coalesce(p_limit::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;

    for v_job in
        with stale as (
            select job.id, job.tenant_id, job.run_id, job.attempts, job.max_attempts, job.locked_by
              from execution.job_queue as job
             where job.status = 'locked'
               and job.locked_at < now() - interval '5 minutes'
             order by job.locked_at
             limit 100
               for update skip locked
        )
        -- Run by run, because the end of a run locks it: two sweeps at once never wait in a circle.
        select stale.* from stale order by stale.run_id, stale.id
    loop
        -- A worker that stands still may do so inside a transaction that settles some of these items. It is not waited for,
        -- or one such worker would hold up every other one here; the job comes again.
        begin
            perform
               from execution.channel_outbox as item
              where item.job_id = v_job.id
                and item.status = 'queued'
                and item.in_doubt_since is null
              order by item.id
                for no key update nowait;
        exception when lock_not_available then
            continue;
        end;
        if exists (select
                     from execution.campaign_runs as run
                          join execution.campaign_phases as phase
                            on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
                    where run.id = v_job.run_id
                      and phase.status = 'paused'
                      for share of phase)
        then
            -- A worker that did not hand it back when its phase was paused has done nothing wrong with it: it burns no attempt.
            perform execution.doubt_leftovers(v_job.id, p_worker_id);
            update execution.job_queue
               set status = 'queued',
                   attempts = attempts - 1,
                   locked_by = null,
                   locked_at = null,
                   run_after = 'infinity'
             where id = v_job.id;
            perform execution.audit(v_job.tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.requeued',
                                    'its phase is paused; not heard of for five minutes: ' || v_job.locked_by);
        elsif v_job.attempts < v_job.max_attempts then
            perform execution.doubt_leftovers(v_job.id, p_worker_id);
            update execution.job_queue
               set status = 'queued',
                   locked_by = null,
                   locked_at = null,
                   last_error = 'its worker was not heard of for five minutes'
             where id = v_job.id;
            perform execution.audit(v_job.tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.requeued',
                                    'not heard of for five minutes: ' || v_job.locked_by);
        else
            perform execution.end_attempt(v_job.id, p_worker_id, interval '0', 'its worker was not heard of for five minutes');
        end if;
    end loop;
    with due as (
        select retry.id
          from execution.job_queue as retry
         where retry.status = 'failed'
           and retry.run_after <= now()
         order by retry.run_after
         limit 100
           for update skip locked
    ), requeued as (
        update execution.job_queue as job
           set status = 'queued'
          from due
         where job.id = any (array[due.id])
     returning job.tenant_id, job.run_id, job.id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action)
    select requeued.tenant_id, requeued.run_id, requeued.id, p_worker_id, 'job.queued'
      from requeued;

    -- Each tenant that has a job waiting is found with one step in the index.
    v_tenants := array(
        with recursive waiting as (
            (select job.tenant_id, job.run_after
               from execution.job_queue as job
              where job.status = 'queued'
              order by job.tenant_id, job.run_after
              limit 1)
            union all
            select next.tenant_id, next.run_after
              from waiting
                   cross join lateral (
                       select job.tenant_id, job.run_after
                         from execution.job_queue as job
                        where job.status = 'queued'
                          and job.tenant_id > waiting.tenant_id
                        order by job.tenant_id, job.run_after
                        limit 1) as next
        )
        select waiting.tenant_id
          from waiting
               left join execution.turns as turn on turn.tenant_id = waiting.tenant_id
         where waiting.run_after <= now()
           and waiting.tenant_id <> all (p_except)
         order by turn.last_turn_at nulls first, waiting.tenant_id);

    -- First an equal share for each, then whatever is left for whoever has more.
    v_share := greatest(1, p_limit / greatest(1, cardinality(v_tenants)));
    for round in 1..2 loop
        foreach v_tenant in array v_tenants loop
            exit when cardinality(v_ids) >= p_limit;
            v_found := array(
                select job.id
                  from execution.job_queue as job
                 where job.tenant_id = v_tenant
                   and job.status = 'queued'
                   and job.run_after <= now()
                   and job.id <> all (v_ids)
                   -- In a form of which the planner expects nothing: it shall read them in their order, and stop.
                   and case when cardinality(p_except_runs) = 0 then true else job.run_id <> all (p_except_runs) end
                 order by job.run_after, job.id
                 limit least(v_share, p_limit - cardinality(v_ids))
                   for update skip locked);
            v_ids := v_ids || v_found;
        end loop;
        v_share := p_limit;
    end loop;
    if cardinality(v_ids) = 0 then
        return;
    end if;

    update execution.job_queue as job
       set status = 'locked',
           attempts = job.attempts + 1,
           locked_by = p_worker_id,
           locked_at = now(),
           waits_for = null
     where job.id = any (v_ids);
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action, note)
    select job.tenant_id, job.run_id, job.id, p_worker_id, 'job.locked', 'attempt ' || job.attempts
      from execution.job_queue as job
     where job.id = any (v_ids);
    -- In the order of their ids, so that two claims never wait in a circle.
    for v_run_id in
        select distinct job.run_id from execution.job_queue as job where job.id = any (v_ids) order by job.run_id
    loop
        update execution.campaign_runs as run
           set status = 'running',
               started_at = now()
         where run.id = v_run_id
           and run.status = 'queued'
     returning run.tenant_id, run.campaign_id, run.phase_id
          into v_run;
        if found then
            perform execution.audit(v_run.tenant_id, v_run.campaign_id, v_run.phase_id, v_run_id, null, null, p_worker_id,
                                    'run.running', null);
        end if;
    end loop;
    -- Turns are noted in the order in which they were taken. Whoever is being served by another worker at this moment has
    -- its turn noted by that one.
    update execution.turns as turn
       set last_turn_at = (select clock_timestamp()) + array_position(v_tenants, turn.tenant_id) * interval '1 microsecond'
     where turn.tenant_id in (select noted.tenant_id
                                from execution.turns as noted
                               where noted.tenant_id = any (array(select job.tenant_id
                                                                    from execution.job_queue as job
                                                                   where job.id = any (v_ids)))
                                 for update skip locked);

    return query
        select job.id, job.tenant_id, job.workspace_id, job.run_id, job.job_type, job.attempts, job.max_attempts, job.item_ids,
               run.channel, run.asset_id, run.provider_account_id, run.provider, run.scheduled_for, run.key_part,
               run.correlation_id
          from execution.job_queue as job
               join execution.campaign_runs as run on run.id = any (array[job.run_id])
         where job.id = any (v_ids);
end
$$;

-- Takes a turn for repeating a call, as before, unless the phase is paused.
create or replace function execution.take_turn_for_doubt(
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
    -- A phase that is paused begins no call, nor a repeat of one.
    if exists (select
                 from execution.channel_outbox as item
                      join execution.campaign_runs as run on run.id = item.run_id
                      join execution.campaign_phases as phase
                        on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
                where item.id = p_outbox_id
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

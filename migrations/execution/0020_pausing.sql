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

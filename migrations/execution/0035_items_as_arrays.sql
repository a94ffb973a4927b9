-- A worker is answered with arrays instead of rows, and reserving and settling cost less.
-- Safe beside running workers: `begin_outbox_items`, `finalize_outbox_items`, `heartbeat_jobs`, `read_leads` and `read_begun_items` keep their
-- signatures and their answers.
-- A worker of before goes on through them. Jobs can be read but not changed while their new index is built.

-- Reserves items: one row each, with its key, for jobs that this worker holds. A key that exists is never reserved again.
--
-- A window is a stretch of a job's items: `p_first[n]` is the place of the first, `p_counts[n]` how many. The other arrays
-- have one entry per item, window after window. An item that will not be called has its verdict already: `p_verdicts` is
-- then `failed` or `skipped`, and `p_reasons` says why.
--
-- The answer is one row, because a row per item would cost as much as a third of writing the items. `windows` says of each window
-- whether it is `open`, `lost` (the worker does not hold its job any more) or `paused` (its phase is not in progress). The other
-- arrays have an entry per item, in the order in which they were asked for: the id of its row, the item, its key, and a verdict.
-- An item of an open window without a verdict is reserved; with one, that is the state in which it is: ended now, or found
-- ended or reserved from before. What stands there for a window that is not open means nothing.
--
-- It is written for the usual case, in which no key exists: a plain insert is cheaper than one that is prepared for conflicts.
-- If there is one, everything is inserted again with care. Items are looked at as flat arrays with the number of their window
-- beside them, because a stretch cut out of an array costs a copy of all of it.
create function execution.begin_windows(
    p_worker_id text,
    p_job_ids uuid[],
    p_attempts integer[],
    p_first integer[],
    p_counts integer[],
    p_outbox_ids uuid[],
    p_recipients text[],
    p_message_hashes bytea[],
    p_verdicts text[],
    p_reasons text[],
    out windows text[],
    out outbox_ids uuid[],
    out item_ids uuid[],
    out idempotency_keys text[],
    out verdicts text[])
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
    v_suppressed uuid[];
    v_end integer;
    v_paused uuid[];
    -- One entry per window: what its items have in common.
    v_ends integer[] := '{}';
    v_tenant_ids uuid[] := array_fill(null::uuid, array[cardinality(p_job_ids)]);
    v_workspace_ids uuid[] := v_tenant_ids;
    v_run_ids uuid[] := v_tenant_ids;
    v_channels text[] := array_fill(null::text, array[cardinality(p_job_ids)]);
    v_providers text[] := v_channels;
    v_prefixes text[] := v_channels;
    v_suffixes text[] := v_channels;
    -- One entry per item: the number of its window, if it is held and may go on.
    v_places integer[] := '{}';
    v_reasons text[] := p_reasons;
    v_inserted integer;
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
    windows := array_fill('lost'::text, array[cardinality(p_job_ids)]);
    outbox_ids := p_outbox_ids;
    item_ids := '{}';
    verdicts := p_verdicts;
    v_end := 0;
    for n in 1..cardinality(p_job_ids) loop
        v_end := v_end + p_counts[n];
        v_ends := v_ends || v_end;
    end loop;

    -- Shared, so that nobody takes a job away while its reservations are being written.
    for v_job in
        select wanted.n, wanted.first, wanted.count, job.*
          from unnest(p_job_ids, p_attempts, p_first, p_counts) with ordinality as wanted (job_id, attempt, first, count, n)
               cross join lateral (
                   select job.id, job.tenant_id, job.workspace_id, job.run_id, run.channel, run.provider, run.key_part,
                          run.scheduled_for, job.item_ids[wanted.first : wanted.first + wanted.count - 1] as items
                     from execution.job_queue as job
                          join execution.campaign_runs as run on run.id = job.run_id
                    where job.id = wanted.job_id
                      and job.status = 'locked'
                      and job.locked_by = p_worker_id
                      and job.attempts = wanted.attempt
                      for share of job) as job
         order by wanted.n
    loop
        if cardinality(v_job.items) is distinct from v_job.count then
            raise exception 'job % has no items % to %', v_job.id, v_job.first, v_job.first + v_job.count - 1
                using errcode = 'invalid_parameter_value';
        end if;
        v_end := v_ends[v_job.n] - v_job.count;
        if v_end > cardinality(item_ids) then
            item_ids := item_ids || array_fill(null::uuid, array[v_end - cardinality(item_ids)]);
            v_places := v_places || array_fill(null::integer, array[v_end - cardinality(v_places)]);
        end if;
        v_suppressed := array(
            select lead.id
              from execution.leads as lead
             where lead.tenant_id = v_job.tenant_id
               and lead.id = any (v_job.items)
               and lead.suppressed_at is not null);
        for i in 1..v_job.count * least(cardinality(v_suppressed), 1) loop
            if v_job.items[i] = any (v_suppressed) and verdicts[v_end + i] is null then
                verdicts[v_end + i] := 'skipped';
                v_reasons[v_end + i] := 'the lead is suppressed';
            end if;
        end loop;
        windows[v_job.n] := 'open';
        v_tenant_ids[v_job.n] := v_job.tenant_id;
        v_workspace_ids[v_job.n] := v_job.workspace_id;
        v_run_ids[v_job.n] := v_job.run_id;
        v_channels[v_job.n] := v_job.channel;
        v_providers[v_job.n] := v_job.provider;
        v_prefixes[v_job.n] := v_job.run_id::text || '|';
        v_suffixes[v_job.n] := '|' || v_job.key_part || '|' || execution.key_time(v_job.scheduled_for);
        item_ids := item_ids || v_job.items;
        v_places := v_places || array_fill(v_job.n::integer, array[v_job.count]);
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
    for n in 1..cardinality(p_job_ids) * least(cardinality(v_paused), 1) loop
        if v_run_ids[n] = any (v_paused) then
            windows[n] := 'paused';
            v_places := array_replace(v_places, n, null);
        end if;
    end loop;

    -- outbox_key, with what a window has in common worked out once.
    idempotency_keys := array(
        select encode(sha256(convert_to(v_prefixes[item.place] || item.id::text || v_suffixes[item.place], 'UTF8')), 'hex')
          from (select unnest(item_ids) as id, unnest(v_places) as place) as item);

    begin
        insert into execution.channel_outbox
               (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
                status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
        select item.id, v_tenant_ids[item.place], v_workspace_ids[item.place], v_run_ids[item.place], p_job_ids[item.place],
               v_channels[item.place], v_providers[item.place], item.item_id, item.recipient, item.key,
               coalesce(item.verdict, 'queued'), item.verdict is not distinct from 'skipped', left(item.reason, 2000),
               p_worker_id, p_attempts[item.place], item.message_hash, case when item.verdict is not null then now() end
          from (select unnest(outbox_ids) as id, unnest(v_places) as place, unnest(item_ids) as item_id,
                       unnest(idempotency_keys) as key, unnest(p_recipients) as recipient,
                       unnest(p_message_hashes) as message_hash, unnest(verdicts) as verdict, unnest(v_reasons) as reason) as item
         where item.place is not null;
        get diagnostics v_inserted = row_count;
        if v_inserted <> cardinality(array_remove(v_places, null)) then
            raise exception 'not every item was given a row' using errcode = 'assert_failure';
        end if;
        return;
    exception when unique_violation then
        -- Nothing was inserted.
    end;
    insert into execution.channel_outbox
           (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
            status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
    select item.id, v_tenant_ids[item.place], v_workspace_ids[item.place], v_run_ids[item.place], p_job_ids[item.place],
           v_channels[item.place], v_providers[item.place], item.item_id, item.recipient, item.key,
           coalesce(item.verdict, 'queued'), item.verdict is not distinct from 'skipped', left(item.reason, 2000),
           p_worker_id, p_attempts[item.place], item.message_hash, case when item.verdict is not null then now() end
      from (select unnest(outbox_ids) as id, unnest(v_places) as place, unnest(item_ids) as item_id,
                   unnest(idempotency_keys) as key, unnest(p_recipients) as recipient,
                   unnest(p_message_hashes) as message_hash, unnest(verdicts) as verdict, unnest(v_reasons) as reason) as item
     where item.place is not null
        on conflict (tenant_id, workspace_id, idempotency_key) do nothing;

    -- Whose row is it? One under the very id that this caller made up is its own: from a moment ago, or it has asked before,
    -- its commit went through, and the answer was lost on the way. Nobody can have called for it, because nobody was told.
    select array_agg(coalesce(item.id, wanted.id) order by wanted.n),
           array_agg(case
                         when item.id is null then 'missing'
                         when item.status = 'queued' and item.id = wanted.id and item.reserved_by = p_worker_id
                              and item.attempt = p_attempts[wanted.place] and item.in_doubt_since is null
                              then null
                         else item.status
                     end order by wanted.n)
      into outbox_ids, verdicts
      from unnest(outbox_ids, v_places, idempotency_keys) with ordinality as wanted (id, place, key, n)
           left join execution.channel_outbox as item
                  on item.tenant_id = any (array[v_tenant_ids[wanted.place]])
                 and item.workspace_id = any (array[v_workspace_ids[wanted.place]])
                 and item.idempotency_key = any (array[wanted.key]);
end
$$;

-- The same with a row per item, whose verdict is `reserved` or the state in which it is. A window that is not open comes back as one
-- row with the verdict `lost` or `paused`.
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
as $$
declare
    v_begun record;
    v_last integer := 0;
begin
    v_begun := execution.begin_windows(p_worker_id, p_job_ids, p_attempts, p_first, p_counts, p_outbox_ids, p_recipients,
                                       p_message_hashes, p_verdicts, p_reasons);
    for n in 1..cardinality(p_job_ids) loop
        if v_begun.windows[n] <> 'open' then
            return query select p_job_ids[n], null::uuid, null::uuid, null::text, v_begun.windows[n];
        else
            return query
                select p_job_ids[n], v_begun.outbox_ids[i], v_begun.item_ids[i], v_begun.idempotency_keys[i],
                       coalesce(v_begun.verdicts[i], 'reserved')
                  from generate_series(v_last + 1, v_last + p_counts[n]) as i;
        end if;
        v_last := v_last + p_counts[n];
    end loop;
end
$$;

-- Settles items with what their calls came to: `sent`, `called`, `posted`, `failed`, or `in_doubt`, which leaves the row
-- `queued`. A row is settled by the worker that reserved it, whether or not it still holds the job: an answer to a call
-- is evidence. Answers with the rows that it changed; the others were settled before.
create or replace function execution.finalize_outbox_items(
    p_worker_id text, p_outbox_ids uuid[], p_statuses text[], p_message_ids text[], p_errors text[])
returns setof uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_nestloop = off
set enable_mergejoin = off
as $$
declare
    v_changed integer;
    v_doubted integer := 0;
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    if not coalesce(p_statuses <@ array['sent', 'called', 'posted', 'failed', 'in_doubt'], false)
       or cardinality(p_statuses) <> cardinality(p_outbox_ids)
    then
        raise exception 'an item is settled as sent, called, posted, failed or in_doubt, each with a word of its own'
            using errcode = 'invalid_parameter_value';
    end if;
    if array_position(p_statuses, 'in_doubt') is not null then
        return query
            with doubted as (
                update execution.channel_outbox as item
                   set in_doubt_since = now(),
                       error = left(settled.error, 2000)
                  from unnest(p_outbox_ids, p_statuses, p_errors) as settled (id, status, error)
                 where item.id = any (p_outbox_ids)
                   and item.id = settled.id
                   and settled.status = 'in_doubt'
                   and item.status = 'queued'
                   and item.in_doubt_since is null
                   and item.reserved_by = p_worker_id
             returning item.id, item.tenant_id, item.run_id, item.job_id, item.error
            ), logged as (
                insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
                select doubted.tenant_id, doubted.run_id, doubted.job_id, doubted.id, p_worker_id, 'item.in_doubt', doubted.error
                  from doubted
            )
            select doubted.id from doubted;
        get diagnostics v_doubted = row_count;
    end if;

    return query
        update execution.channel_outbox as item
           set status = settled.status,
               provider_message_id = left(settled.provider_message_id, 500),
               error = left(settled.error, 2000),
               finalized_at = now(),
               in_doubt_since = null
          from (select unnest(p_outbox_ids) as id, unnest(p_statuses) as status, unnest(p_message_ids) as provider_message_id,
                       unnest(p_errors) as error) as settled
         where item.id = any (p_outbox_ids)
           and item.id = settled.id
           and settled.status <> 'in_doubt'
           and item.status = 'queued'
           and item.reserved_by = p_worker_id
     returning item.id;
    get diagnostics v_changed = row_count;

    -- An answer that came after somebody had decided otherwise changes nothing, and is not thrown away either.
    if v_changed + v_doubted < cardinality(p_outbox_ids) then
        insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
        select item.tenant_id, item.run_id, item.job_id, item.id, p_worker_id, 'item.contradicted',
               'the provider''s answer was: ' || settled.status || coalesce(' ' || settled.provider_message_id, '')
          from unnest(p_outbox_ids, p_statuses, p_message_ids) as settled (id, status, provider_message_id)
               join execution.channel_outbox as item on item.id = settled.id
         where item.id = any (p_outbox_ids)
           and settled.status <> 'in_doubt'
           and item.reserved_by = p_worker_id
           and item.status <> 'queued'
           and item.status <> settled.status;
    end if;
end
$$;

-- The leads among a job's items, an entry each, in no particular order; nothing at all when the job is not held any more. A lead
-- counts as suppressed when anybody with its address is. `begun`: which items have a row already, if that is asked for.
create function execution.read_audience(
    p_worker_id text,
    p_job_id uuid,
    p_attempt integer,
    p_with_begun boolean,
    out ids uuid[],
    out external_ids text[],
    out emails text[],
    out phones text[],
    out timezones text[],
    out attributes jsonb[],
    out suppression_reasons text[],
    out begun uuid[])
language plpgsql
stable
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
begin
    select job.tenant_id, job.item_ids, run.channel
      into v_job
      from execution.job_queue as job
           join execution.campaign_runs as run on run.id = job.run_id
     where job.id = p_job_id
       and job.status = 'locked'
       and job.locked_by = p_worker_id
       and job.attempts = p_attempt;
    if not found then
        return;
    end if;
    if v_job.channel = 'email' then
        select array_agg(lead.id), array_agg(lead.external_id), array_agg(lead.email), array_agg(lead.phone),
               array_agg(lead.timezone), array_agg(lead.attributes),
               array_agg(coalesce(lead.suppression_reason,
                                  (select other.suppression_reason
                                     from execution.leads as other
                                    where other.tenant_id = lead.tenant_id
                                      and other.workspace_id = lead.workspace_id
                                      and lower(other.email) = lower(lead.email)
                                      and other.suppressed_at is not null
                                    limit 1)))
          into ids, external_ids, emails, phones, timezones, attributes, suppression_reasons
          from execution.leads as lead
         where lead.tenant_id = v_job.tenant_id
           and lead.id = any (v_job.item_ids);
    else
        select array_agg(lead.id), array_agg(lead.external_id), array_agg(lead.email), array_agg(lead.phone),
               array_agg(lead.timezone), array_agg(lead.attributes),
               array_agg(coalesce(lead.suppression_reason,
                                  (select other.suppression_reason
                                     from execution.leads as other
                                    where other.tenant_id = lead.tenant_id
                                      and other.workspace_id = lead.workspace_id
                                      and other.phone = lead.phone
                                      and other.suppressed_at is not null
                                      and v_job.channel = 'voice'
                                    limit 1)))
          into ids, external_ids, emails, phones, timezones, attributes, suppression_reasons
          from execution.leads as lead
         where lead.tenant_id = v_job.tenant_id
           and lead.id = any (v_job.item_ids);
    end if;
    ids := coalesce(ids, '{}');
    if p_with_begun then
        begun := array(
            select item.recipient_id
              from execution.channel_outbox as item
             where item.job_id = p_job_id
               and item.recipient_id is not null);
    end if;
end
$$;

-- Says that a worker still has its jobs, and answers with those that it has. Jobs are locked in the order of their ids, as reservations
-- lock them: of two that want the same ones, neither waits for the other in a circle.
create or replace function execution.heartbeat_jobs(p_worker_id text, p_job_ids uuid[], p_attempts integer[])
returns setof uuid
language sql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    update execution.job_queue as job
       set locked_at = now()
      from (select mine.id
              from unnest(p_job_ids, p_attempts) as held (id, attempt)
                   join execution.job_queue as mine on mine.id = any (array[held.id])
             where mine.status = 'locked'
               and mine.locked_by = p_worker_id
               and mine.attempts = held.attempt
             order by mine.id
               for no key update of mine) as mine
     where job.id = any (array[mine.id])
 returning job.id
$$;

-- What is left of a run, in the order in which it is taken.
create index job_queue_left on execution.job_queue (run_id, run_after, id) where status in ('queued', 'locked', 'failed');
drop index execution.job_queue_open;

create or replace function execution.finish_run(p_run_id uuid, p_actor text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run record;
    v_status text;
    v_phase_status text;
begin
    -- The lock comes first: of two jobs that end at once, the later one sees both.
    select run.*
      into strict v_run
      from execution.campaign_runs as run
     where run.id = p_run_id
       for no key update;
    -- From the end of the index, where the job lies that is taken last: while somebody holds a snapshot, all those that have ended
    -- still lie in front of it.
    perform
       from execution.job_queue as job
      where job.run_id = p_run_id
        and job.status in ('queued', 'locked', 'failed')
      order by job.run_after desc, job.id desc
      limit 1;
    if found then
        return;
    end if;
    select case
               when bool_and(job.outcome = 'completed') then 'completed'
               when bool_and(job.outcome = 'failed') then 'failed'
               else 'partial'
           end
      into v_status
      from execution.job_queue as job
     where job.tenant_id = v_run.tenant_id
       and job.run_id = p_run_id;
    update execution.campaign_runs
       set status = v_status,
           finished_at = now()
     where id = p_run_id;
    perform execution.audit(v_run.tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor,
                            'run.' || v_status, null);
    perform
       from execution.campaigns
      where tenant_id = v_run.tenant_id
        and id = v_run.campaign_id
        for no key update;
    select phase.status
      into strict v_phase_status
      from execution.campaign_phases as phase
     where phase.tenant_id = v_run.tenant_id
       and phase.id = v_run.phase_id
       for no key update;
    -- A phase that is paused ends when it is resumed.
    if v_phase_status = 'in_progress' then
        perform execution.end_phase(v_run.tenant_id, v_run.phase_id, p_actor);
    end if;
end
$$;

-- After the change instead of before it: they refuse the same changes, and Postgres locks each row once more for a trigger before.
drop trigger channel_outbox_doubts_end_with_the_item on execution.channel_outbox;
drop trigger channel_outbox_ends_are_final on execution.channel_outbox;
drop trigger channel_outbox_moves_once on execution.channel_outbox;
drop trigger channel_outbox_reservations_are_facts on execution.channel_outbox;
create trigger channel_outbox_doubts_end_with_the_item
    after update on execution.channel_outbox
    for each row when (old.in_doubt_since is not null and new.in_doubt_since is null and new.status = 'queued')
    execute function tenancy.refuse_change('an item stays in doubt until it is known how it ended');
create trigger channel_outbox_ends_are_final
    after update on execution.channel_outbox
    for each row when (old.status <> 'queued')
    execute function tenancy.refuse_change('an item that has ended never changes; sending again is a new run');
create trigger channel_outbox_moves_once
    after update of moved_to_account_id on execution.channel_outbox
    for each row when (old.moved_to_account_id is not null or old.status <> 'queued' or old.in_doubt_since is not null
                       or new.moved_to_account_id is null)
    execute function tenancy.refuse_change('an item moves to another account once, and only while nothing was sent');
create trigger channel_outbox_reservations_are_facts
    after update of id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
                    reserved_by, attempt, message_hash, created_at
    on execution.channel_outbox
    for each row
    execute function tenancy.refuse_change('a reservation stays as it was made');

revoke all on all functions in schema execution from public;
grant execute on function
    execution.begin_windows(text, uuid[], integer[], integer[], integer[], uuid[], text[], bytea[], text[], text[]),
    execution.read_audience(text, uuid, integer, boolean)
    to postrider_worker;

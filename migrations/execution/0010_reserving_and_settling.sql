-- The heart of it: a row with a unique key is committed before a provider is called, and settled with what the call came to.
-- Safe beside running workers: it adds functions and touches no table.

-- Reserves items: one row each, with its key, for jobs that this worker holds. A key that exists is never reserved again.
--
-- A window is a stretch of a job's items: `p_first[n]` is the place of the first, `p_counts[n]` how many. The other arrays
-- have one entry per item, window after window. An item that will not be called has its verdict already: `p_verdicts` is
-- then `failed` or `skipped`, and `p_reasons` says why.
--
-- The answer has a row per item, whose verdict is `reserved`, or the state in which the item is: ended now, or found
-- ended or reserved from before. A window of a job that the worker does not hold any more comes back as one row
-- with the verdict `lost`.
create function execution.begin_outbox_items(
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
    v_windows integer[] := '{}';
    v_items uuid[] := '{}';
    -- The places of suppressed leads among them: another tenant may know a lead by the same id.
    v_suppressed integer[] := '{}';
    v_tenant_ids uuid[] := '{}';
    v_workspace_ids uuid[] := '{}';
    v_run_ids uuid[] := '{}';
    v_channels text[] := '{}';
    v_providers text[] := '{}';
    v_prefixes text[] := '{}';
    v_suffixes text[] := '{}';
    v_wanted integer := 0;
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
            return query select p_job_ids[n], null::uuid, null::uuid, null::text, 'lost'::text;
        elsif cardinality(v_job.items) is distinct from p_counts[n] then
            raise exception 'job % has no items % to %', p_job_ids[n], p_first[n], p_first[n] + p_counts[n] - 1
                using errcode = 'invalid_parameter_value';
        else
            v_suppressed := v_suppressed || array(
                select cardinality(v_items) + array_position(v_job.items, lead.id)
                  from execution.leads as lead
                 where lead.tenant_id = v_job.tenant_id
                   and lead.id = any (v_job.items)
                   and lead.suppressed_at is not null);
            v_items := v_items || v_job.items;
            v_wanted := v_wanted + p_counts[n];
        end if;
        v_windows := v_windows || array_fill(n, array[p_counts[n]]);
        v_tenant_ids := v_tenant_ids || v_job.tenant_id;
        v_workspace_ids := v_workspace_ids || v_job.workspace_id;
        v_run_ids := v_run_ids || v_job.run_id;
        v_channels := v_channels || v_job.channel;
        v_providers := v_providers || v_job.provider;
        v_prefixes := v_prefixes || (v_job.run_id::text || '|');
        v_suffixes := v_suffixes || ('|' || v_job.key_part || '|' || execution.key_time(v_job.scheduled_for));
    end loop;

    return query
        insert into execution.channel_outbox as item
               (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
                status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
        select wanted.id,
               v_tenant_ids[wanted.n],
               v_workspace_ids[wanted.n],
               v_run_ids[wanted.n],
               p_job_ids[wanted.n],
               v_channels[wanted.n],
               v_providers[wanted.n],
               wanted.item_id,
               wanted.recipient,
               -- outbox_key, with what a window has in common worked out once.
               encode(sha256(convert_to(v_prefixes[wanted.n] || wanted.item_id::text || v_suffixes[wanted.n], 'UTF8')), 'hex'),
               wanted.status,
               wanted.status = 'skipped',
               wanted.reason,
               p_worker_id,
               p_attempts[wanted.n],
               wanted.message_hash,
               case when wanted.status <> 'queued' then now() end
          from (select unnested.id, unnested.n, unnested.item_id, unnested.recipient, unnested.message_hash,
                       case
                           when unnested.verdict is not null then unnested.verdict
                           when unnested.place = any (v_suppressed) then 'skipped'
                           else 'queued'
                       end as status,
                       case
                           when unnested.verdict is not null then left(unnested.reason, 2000)
                           when unnested.place = any (v_suppressed) then 'the lead is suppressed'
                       end as reason
                  from unnest(p_outbox_ids, v_windows, v_items, p_recipients, p_message_hashes, p_verdicts, p_reasons)
                       with ordinality as unnested (id, n, item_id, recipient, message_hash, verdict, reason, place)
                 where unnested.item_id is not null) as wanted
            on conflict (tenant_id, workspace_id, idempotency_key) do nothing
     returning item.job_id, item.id, item.recipient_id, item.idempotency_key,
               case item.status when 'queued' then 'reserved' else item.status end;
    get diagnostics v_inserted = row_count;
    if v_inserted = v_wanted then
        return;
    end if;

    -- Keys that exist. A row under the very id that this caller made up is its own: it has asked before, its commit went
    -- through, and the answer was lost on the way. Nobody can have called for it, because nobody was told.
    return query
        select item.job_id, item.id, item.recipient_id, item.idempotency_key,
               case
                   when item.status = 'queued' and item.id = wanted.id and item.reserved_by = p_worker_id
                        and item.attempt = p_attempts[wanted.n] and item.in_doubt_since is null
                        then 'reserved'
                   else item.status
               end
          from unnest(p_outbox_ids, v_windows, v_items) as wanted (id, n, item_id)
               join execution.channel_outbox as item
                 on item.tenant_id = any (array[v_tenant_ids[wanted.n]])
                and item.workspace_id = any (array[v_workspace_ids[wanted.n]])
                and item.idempotency_key = any (array[encode(sha256(convert_to(
                        v_prefixes[wanted.n] || wanted.item_id::text || v_suffixes[wanted.n], 'UTF8')), 'hex')])
         where wanted.item_id is not null
           -- What was inserted a moment ago by this very statement's sibling is not a conflict. What was settled in this
           -- transaction under another id is one.
           and (item.xmin <> pg_current_xact_id()::xid or item.id <> wanted.id);
end
$$;

-- Settles items with what their calls came to: `sent`, `called`, `posted`, `failed`, or `in_doubt`, which leaves the row
-- `queued`. A row is settled by the worker that reserved it, whether or not it still holds the job: an answer to a call
-- is evidence. Answers with the rows that it changed; the others were settled before.
create function execution.finalize_outbox_items(
    p_worker_id text, p_outbox_ids uuid[], p_statuses text[], p_message_ids text[], p_errors text[])
returns setof uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
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
                 where item.id = any (array[settled.id])
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
          from unnest(p_outbox_ids, p_statuses, p_message_ids, p_errors)
               as settled (id, status, provider_message_id, error)
         where item.id = any (array[settled.id])
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
               join execution.channel_outbox as item on item.id = any (array[settled.id])
         where settled.status <> 'in_doubt'
           and item.reserved_by = p_worker_id
           and item.status <> 'queued'
           and item.status <> settled.status;
    end if;
end
$$;

revoke all on all functions in schema execution from public;
grant execute on function
    execution.begin_outbox_items(text, uuid[], integer[], integer[], integer[], uuid[], text[], bytea[], text[], text[]),
    execution.finalize_outbox_items(text, uuid[], text[], text[], text[])
    to postrider_worker;

-- Reservations: a row with a unique key is committed before a provider is called.

-- A window is a range of a send job's items: `p_tenant_ids[n]` and `p_job_ids[n]` name the send job, `p_first[n]` is the place of its
-- first item, `p_counts[n]` the number of items. Callers give windows in the order of tenants and send jobs, so that two of them
-- cannot deadlock. The arrays from `p_outbox_ids` on have one entry per item, window after window. An item that will not be called has its
-- verdict already: `p_verdicts` is then `failed` or `skipped`, and `p_reasons` has the reason.
--
-- The result is one row, because a row per item would cost a third as much as writing the items. Its arrays have one
-- entry per item, in the order of the arguments: the id of its outbox row, the item, its key, and a verdict. The
-- verdict is the status of an item that ended in this call, or that had a row before. The entries of a window that is
-- not open have no meaning.
--
-- An item that was put back (settle.sql) has a row without a worker. It is reserved again under the same row, whose id is in the
-- result: provably no call was made for it.
--
-- The first insert is for the usual case in which no key exists: a plain insert is cheaper than one with `on
-- conflict`. If a key exists, everything is inserted again with `on conflict`. Items are kept in flat arrays with the
-- number of their window beside them, because a slice of an array costs a copy of the whole array.
create or replace function execution.begin_windows(
    p_tenant_ids uuid[],
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
    v_now constant timestamptz := now();
    v_suppressed uuid[];
    v_erased uuid[];
    v_end integer;
    v_place integer;
    -- One entry per window: the values that its items share.
    v_ends integer[] := '{}'::integer[];
    v_workspace_ids uuid[] := array_fill(null::uuid, array[cardinality(p_job_ids)]);
    v_run_ids uuid[] := v_workspace_ids;
    v_channels text[] := array_fill(null::text, array[cardinality(p_job_ids)]);
    v_providers text[] := v_channels;
    v_prefixes text[] := v_channels;
    v_suffixes text[] := v_channels;
    -- One entry per item: the number of its window; null if the window is lost or paused.
    v_places integer[] := '{}'::integer[];
    v_reasons text[] := p_reasons;
    v_inserted integer;
    v_waiting record;
    v_again uuid[] := '{}'::uuid[];
begin
    perform tenancy.limit_idle_time();
    -- A reservation must survive a crash, whatever the settings of the login are.
    perform tenancy.require_durable_commit();
    -- Each statement needs its own snapshot: otherwise a committed pause would go unseen.
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

    -- The share lock keeps the send job with this worker until the reservations are committed.
    for v_job in
        select wanted.n, wanted.first, wanted.count, job.*
          from unnest(p_tenant_ids, p_job_ids, p_attempts, p_first, p_counts) with ordinality
               as wanted (tenant_id, job_id, attempt, first, count, n)
               cross join lateral (
                   select job.id, job.tenant_id, job.workspace_id, job.run_id, run.channel, run.provider, run.key_part,
                          run.scheduled_for, job.item_ids[wanted.first : wanted.first + wanted.count - 1] as items
                     from execution.job_queue as job
                          join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
                    where job.tenant_id = wanted.tenant_id
                      and job.id = wanted.job_id
                      and job.status = 'locked'
                      and job.locked_by = p_worker_id
                      and job.attempts = wanted.attempt
                      for share of job) as job
         order by wanted.n
    loop
        if cardinality(v_job.items) is distinct from v_job.count then
            raise exception 'send job % has no items % to %', v_job.id, v_job.first, v_job.first + v_job.count - 1
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
        -- The worker may have read the lead before its erasure, so its address and the reason are not stored.
        if cardinality(v_suppressed) > 0 then
            v_erased := array(
                select lead.id
                  from execution.leads as lead
                 where lead.tenant_id = v_job.tenant_id
                   and lead.id = any (v_suppressed)
                   and lead.erasing_since is not null);
            for i in 1..v_job.count * least(cardinality(v_erased), 1) loop
                if v_job.items[i] = any (v_erased) then
                    verdicts[v_end + i] := 'skipped';
                    v_reasons[v_end + i] := 'erased';
                    p_recipients[v_end + i] := null;
                end if;
            end loop;
        end if;
        windows[v_job.n] := 'open';
        v_workspace_ids[v_job.n] := v_job.workspace_id;
        v_run_ids[v_job.n] := v_job.run_id;
        v_channels[v_job.n] := v_job.channel;
        v_providers[v_job.n] := v_job.provider;
        v_prefixes[v_job.n] := v_job.run_id::text || '|';
        v_suffixes[v_job.n] := '|' || v_job.key_part || '|' || execution.key_time(v_job.scheduled_for);
        item_ids := item_ids || v_job.items;
        v_places := v_places || array_fill(v_job.n::integer, array[v_job.count]);
    end loop;

    -- Read the phases after the last send job is locked, in a statement with its own snapshot. A pause that has
    -- committed is seen here; a pause that commits later waits for these locks before it answers
    -- (await_reservations).
    for v_place in
        select begun.n::integer
          from unnest(p_tenant_ids, v_run_ids) with ordinality as begun (tenant_id, run_id, n)
               cross join lateral (
                   select phase.status
                     from execution.campaign_runs as run
                          join execution.campaign_phases as phase
                            on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
                    where run.tenant_id = begun.tenant_id
                      and run.id = begun.run_id
                   offset 0) as phase
         where phase.status <> 'in_progress'
    loop
        windows[v_place] := 'paused';
        v_places := array_replace(v_places, v_place, null);
    end loop;

    -- The same key as outbox_key, with the parts that a window shares computed once.
    idempotency_keys := array(
        select encode(sha256(convert_to(v_prefixes[item.place] || item.id::text || v_suffixes[item.place], 'UTF8')), 'hex')
          from (select unnest(item_ids) as id, unnest(v_places) as place) as item);

    begin
        insert into execution.channel_outbox
               (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
                status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
        select item.id, p_tenant_ids[item.place], v_workspace_ids[item.place], v_run_ids[item.place], p_job_ids[item.place],
               v_channels[item.place], v_providers[item.place], item.item_id, item.recipient, item.key,
               coalesce(item.verdict, 'queued'), item.verdict is not distinct from 'skipped', left(item.reason, 2000),
               p_worker_id, p_attempts[item.place], item.message_hash, case when item.verdict is not null then v_now end
          from (select unnest(outbox_ids) as id, unnest(v_places) as place, unnest(item_ids) as item_id,
                       unnest(idempotency_keys) as key, unnest(p_recipients) as recipient,
                       unnest(p_message_hashes) as message_hash, unnest(verdicts) as verdict, unnest(v_reasons) as reason) as item
         where item.place is not null;
        get diagnostics v_inserted = row_count;
        if v_inserted <> cardinality(array_remove(v_places, null)) then
            raise exception 'the insert did not add one row per item' using errcode = 'assert_failure';
        end if;
        return;
    exception when unique_violation then
        -- The failed insert was rolled back; the insert below handles the conflicts.
    end;
    insert into execution.channel_outbox
           (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
            status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
    select item.id, p_tenant_ids[item.place], v_workspace_ids[item.place], v_run_ids[item.place], p_job_ids[item.place],
           v_channels[item.place], v_providers[item.place], item.item_id, item.recipient, item.key,
           coalesce(item.verdict, 'queued'), item.verdict is not distinct from 'skipped', left(item.reason, 2000),
           p_worker_id, p_attempts[item.place], item.message_hash, case when item.verdict is not null then v_now end
      from (select unnest(outbox_ids) as id, unnest(v_places) as place, unnest(item_ids) as item_id,
                   unnest(idempotency_keys) as key, unnest(p_recipients) as recipient,
                   unnest(p_message_hashes) as message_hash, unnest(verdicts) as verdict, unnest(v_reasons) as reason) as item
     where item.place is not null
        on conflict (tenant_id, workspace_id, idempotency_key) do nothing;
    -- One by one, through the index of keys and the primary key: items are put back rarely.
    for v_waiting in
        select item.tenant_id, item.id, wanted.place, wanted.recipient, wanted.message_hash, wanted.verdict, wanted.reason
          from unnest(v_places, idempotency_keys, p_recipients, p_message_hashes, verdicts, v_reasons)
               as wanted (place, key, recipient, message_hash, verdict, reason)
               cross join lateral (
                   select known.tenant_id, known.id
                     from execution.channel_outbox as known
                    where known.tenant_id = p_tenant_ids[wanted.place]
                      and known.workspace_id = v_workspace_ids[wanted.place]
                      and known.idempotency_key = wanted.key
                      and known.status = 'queued'
                      and known.in_doubt_since is null
                      and known.reserved_by is null
                   offset 0) as item
    loop
        update execution.channel_outbox as item
           set status = coalesce(v_waiting.verdict, 'queued'),
               skipped = v_waiting.verdict is not distinct from 'skipped',
               error = left(v_waiting.reason, 2000),
               recipient = v_waiting.recipient,
               message_hash = v_waiting.message_hash,
               reserved_by = p_worker_id,
               attempt = p_attempts[v_waiting.place],
               moved_to_account_id = null,
               created_at = v_now,
               finalized_at = case when v_waiting.verdict is not null then v_now end
         where item.tenant_id = v_waiting.tenant_id
           and item.id = v_waiting.id
           and item.status = 'queued'
           and item.in_doubt_since is null
           and item.reserved_by is null;
        if found then
            v_again := v_again || v_waiting.id;
        end if;
    end loop;

    -- Decide which rows belong to this call. A row under the id that the caller generated is its own: either it was
    -- inserted above, or an earlier call committed it and the response was lost. The provider was not called for
    -- it, because no worker received the reservation.
    select array_agg(coalesce(item.id, wanted.id) order by wanted.n),
           array_agg(case
                         when item.id is null then 'missing'
                         when item.status = 'queued' and item.id = any (v_again) then null
                         when item.status = 'queued' and item.id = wanted.id and item.reserved_by = p_worker_id
                              and item.attempt = p_attempts[wanted.place] and item.in_doubt_since is null
                              then null
                         else item.status
                     end order by wanted.n)
      into outbox_ids, verdicts
      from unnest(outbox_ids, v_places, idempotency_keys) with ordinality as wanted (id, place, key, n)
           left join lateral (
               select known.id, known.status, known.reserved_by, known.attempt, known.in_doubt_since
                 from execution.channel_outbox as known
                where known.tenant_id = p_tenant_ids[wanted.place]
                  and known.workspace_id = v_workspace_ids[wanted.place]
                  and known.idempotency_key = wanted.key
               offset 0) as item on true;
end
$$;
comment on function
    execution.begin_windows(uuid[], text, uuid[], integer[], integer[], integer[], uuid[], text[], bytea[], text[], text[]) is
    'Reserves items of send jobs, of any number of tenants, that the worker holds: one outbox row per item, with its '
    'idempotency key. A key that exists is reserved again only if its item was put back. Returns one row of arrays: windows is open, lost (the worker does not hold the '
    'send job) or paused (the phase is not in progress) for each window; an item of an open window is reserved if its '
    'verdict is null, else the verdict is its status.';
revoke all on function
    execution.begin_windows(uuid[], text, uuid[], integer[], integer[], integer[], uuid[], text[], bytea[], text[], text[])
    from public;
grant execute on function
    execution.begin_windows(uuid[], text, uuid[], integer[], integer[], integer[], uuid[], text[], bytea[], text[], text[])
    to postrider_worker;

create or replace function execution.begin_outbox_items(
    p_tenant_ids uuid[],
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
returns table (tenant_id uuid, job_id uuid, outbox_id uuid, item_id uuid, idempotency_key text, verdict text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_begun record;
    v_last integer := 0;
begin
    v_begun := execution.begin_windows(p_tenant_ids, p_worker_id, p_job_ids, p_attempts, p_first, p_counts, p_outbox_ids,
                                       p_recipients, p_message_hashes, p_verdicts, p_reasons);
    for n in 1..cardinality(p_job_ids) loop
        if v_begun.windows[n] <> 'open' then
            return query select p_tenant_ids[n], p_job_ids[n], null::uuid, null::uuid, null::text, v_begun.windows[n];
        else
            return query
                select p_tenant_ids[n], p_job_ids[n], v_begun.outbox_ids[i], v_begun.item_ids[i], v_begun.idempotency_keys[i],
                       coalesce(v_begun.verdicts[i], 'reserved')
                  from generate_series(v_last + 1, v_last + p_counts[n]) as i;
        end if;
        v_last := v_last + p_counts[n];
    end loop;
end
$$;
comment on function
    execution.begin_outbox_items(uuid[], text, uuid[], integer[], integer[], integer[], uuid[], text[], bytea[], text[], text[]) is
    'Reserves items as begin_windows does, and returns a row per item whose verdict is reserved or the status of the '
    'item. A window that is not open returns one row with the verdict lost or paused.';
revoke all on function
    execution.begin_outbox_items(uuid[], text, uuid[], integer[], integer[], integer[], uuid[], text[], bytea[], text[], text[])
    from public;
grant execute on function
    execution.begin_outbox_items(uuid[], text, uuid[], integer[], integer[], integer[], uuid[], text[], bytea[], text[], text[])
    to postrider_worker;

-- Reserving costs less, and a worker reads what a job needs in two questions.
-- Safe beside running workers: it replaces one function with the same signature and the same answers, and adds two.

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

-- What the items of a job have in common: the content, and the account they go through. Nothing when the worker does not hold
-- the job any more; the account is null when it was removed.
create function execution.read_job(p_worker_id text, p_job_id uuid, p_attempt integer)
returns table (content jsonb, settings jsonb, sealed_secret bytea)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
    return query
        select asset.content, account.settings, account.sealed_secret
          from execution.job_queue as job
               join execution.campaign_runs as run on run.id = job.run_id
               join execution.assets as asset on asset.tenant_id = run.tenant_id and asset.id = run.asset_id
               left join tenancy.provider_accounts as account
                      on account.tenant_id = run.tenant_id
                     and account.id = run.provider_account_id
         where job.id = p_job_id
           and job.status = 'locked'
           and job.locked_by = p_worker_id
           and job.attempts = p_attempt;
end
$$;

-- The leads among the items of a job that this worker holds. A lead counts as suppressed when anybody with its address is.
--
-- By a function of the owner, because of the index by address: under a row policy the planner may not use `lower`
-- before it has checked whose row it is, and reads all suppressed leads of the tenant for each.
create function execution.read_leads(p_worker_id text, p_job_id uuid, p_attempt integer)
returns table (
    id uuid, external_id text, email text, phone text, timezone text, attributes jsonb, suppression_reason text)
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
    if v_job.channel = 'email' then
        return query
            select lead.id, lead.external_id, lead.email, lead.phone, lead.timezone, lead.attributes,
                   coalesce(lead.suppression_reason,
                            (select other.suppression_reason
                               from execution.leads as other
                              where other.tenant_id = lead.tenant_id
                                and other.workspace_id = lead.workspace_id
                                and lower(other.email) = lower(lead.email)
                                and other.suppressed_at is not null
                              limit 1))
              from execution.leads as lead
             where lead.tenant_id = v_job.tenant_id
               and lead.id = any (v_job.item_ids);
    else
        return query
            select lead.id, lead.external_id, lead.email, lead.phone, lead.timezone, lead.attributes,
                   coalesce(lead.suppression_reason,
                            (select other.suppression_reason
                               from execution.leads as other
                              where other.tenant_id = lead.tenant_id
                                and other.workspace_id = lead.workspace_id
                                and other.phone = lead.phone
                                and other.suppressed_at is not null
                                and v_job.channel = 'voice'
                              limit 1))
              from execution.leads as lead
             where lead.tenant_id = v_job.tenant_id
               and lead.id = any (v_job.item_ids);
    end if;
end
$$;

revoke all on all functions in schema execution from public;
grant execute on function
    execution.read_job(text, uuid, integer),
    execution.read_leads(text, uuid, integer)
    to postrider_worker;

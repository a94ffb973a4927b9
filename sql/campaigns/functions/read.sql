-- Reads of a worker: the content, accounts and leads of a send job that it holds.

create or replace function execution.read_job(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer)
returns table (content jsonb, settings jsonb, sealed_secret bytea)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select asset.content, account.settings, account.sealed_secret
          from execution.job_queue as job
               join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
               join execution.assets as asset on asset.tenant_id = run.tenant_id and asset.id = run.asset_id
               left join tenancy.provider_accounts as account
                      on account.tenant_id = run.tenant_id
                     and account.id = run.provider_account_id
         where job.tenant_id = p_tenant_id
           and job.id = p_job_id
           and job.status = 'locked'
           and job.locked_by = p_worker_id
           and job.attempts = p_attempt;
end
$$;
comment on function execution.read_job(uuid, text, uuid, integer) is
    'Returns the content, and the settings and sealed secret of the account, of a send job that the worker holds. Returns '
    'no row if the worker does not hold the send job.';
revoke all on function execution.read_job(uuid, text, uuid, integer) from public;
grant execute on function execution.read_job(uuid, text, uuid, integer) to postrider_worker;

create or replace function execution.read_accounts(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer)
returns table (
    account_id uuid, is_failover boolean, provider text, settings jsonb, sealed_secret bytea, limits jsonb,
    wait_seconds double precision, circuit_seconds double precision)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select account.id, used.is_failover, account.provider, account.settings, account.sealed_secret, account.limits,
               extract(epoch from nullif(greatest(state.wait_until, v_now), v_now) - v_now)::double precision,
               extract(epoch from state.circuit_open_until - v_now)::double precision
          from execution.job_queue as job
               join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
               cross join lateral (values (run.provider_account_id, false), (run.failover_account_id, true))
                          as used (id, is_failover)
               join tenancy.provider_accounts as account on account.tenant_id = run.tenant_id and account.id = used.id
               left join execution.account_states as state
                      on state.tenant_id = account.tenant_id
                     and state.account_id = account.id
         where job.tenant_id = p_tenant_id
           and job.id = p_job_id
           and job.status = 'locked'
           and job.locked_by = p_worker_id
           and job.attempts = p_attempt;
end
$$;
comment on function execution.read_accounts(uuid, text, uuid, integer) is
    'Returns the account and the failover account of a send job that the worker holds, with their limits, waits and '
    'circuits.';
revoke all on function execution.read_accounts(uuid, text, uuid, integer) from public;
grant execute on function execution.read_accounts(uuid, text, uuid, integer) to postrider_worker;

-- This is a definer function because of the index by address: under a row policy the planner may not evaluate `lower`
-- before it has checked the tenant of the row, and would read all suppressed leads of the tenant for each lead.
create or replace function execution.read_audience(
    p_tenant_id uuid,
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
    perform tenancy.require_tenant(p_tenant_id);
    select job.item_ids, run.channel
      into v_job
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
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
                                    where other.tenant_id = p_tenant_id
                                      and other.workspace_id = lead.workspace_id
                                      and lower(other.email) = lower(lead.email)
                                      and other.suppressed_at is not null
                                    limit 1)))
          into ids, external_ids, emails, phones, timezones, attributes, suppression_reasons
          from execution.leads as lead
         where lead.tenant_id = p_tenant_id
           and lead.id = any (v_job.item_ids);
    else
        select array_agg(lead.id), array_agg(lead.external_id), array_agg(lead.email), array_agg(lead.phone),
               array_agg(lead.timezone), array_agg(lead.attributes),
               array_agg(coalesce(lead.suppression_reason,
                                  (select other.suppression_reason
                                     from execution.leads as other
                                    where other.tenant_id = p_tenant_id
                                      and other.workspace_id = lead.workspace_id
                                      and other.phone = lead.phone
                                      and other.suppressed_at is not null
                                      and v_job.channel = 'voice'
                                    limit 1)))
          into ids, external_ids, emails, phones, timezones, attributes, suppression_reasons
          from execution.leads as lead
         where lead.tenant_id = p_tenant_id
           and lead.id = any (v_job.item_ids);
    end if;
    ids := coalesce(ids, '{}');
    if p_with_begun then
        begun := array(
            select item.recipient_id
              from execution.channel_outbox as item
             where item.tenant_id = p_tenant_id
               and item.job_id = p_job_id
               and item.recipient_id is not null
               and (item.status <> 'queued' or item.reserved_by is not null or item.in_doubt_since is not null));
    end if;
end
$$;
comment on function execution.read_audience(uuid, text, uuid, integer, boolean) is
    'Returns the leads among the items of a send job that the worker holds, as arrays in no particular order; all are null '
    'if the worker does not hold the send job. A lead counts as suppressed if any lead with its address is. With '
    'p_with_begun, begun has the items that have an outbox row already and were not put back.';
revoke all on function execution.read_audience(uuid, text, uuid, integer, boolean) from public;
grant execute on function execution.read_audience(uuid, text, uuid, integer, boolean) to postrider_worker;

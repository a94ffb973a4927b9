-- Reports of providers: callbacks as evidence about items in doubt, delivery statuses, and the suppressions that follow from them.

create or replace function execution.delivery_rank(p_status text)
returns integer
language sql
immutable
parallel safe
return case p_status
           when 'accepted' then 1
           when 'ringing' then 2
           when 'delayed' then 3
           when 'answered' then 4
           when 'canceled' then 5
           when 'failed' then 6
           when 'no_answer' then 7
           when 'busy' then 8
           when 'delivered' then 9
           when 'completed' then 10
           when 'answered_by_machine' then 11
           when 'bounced' then 12
           when 'complained' then 13
       end;
comment on function execution.delivery_rank(text) is
    'Returns the rank of a delivery status: a report replaces a status of a lower rank. The model has the same table.';
revoke all on function execution.delivery_rank(text) from public;
grant execute on function execution.delivery_rank(text) to postrider_app, postrider_worker, postrider_read;

-- With p_address, the report is about this address: a lead that has another one by now stays as it is.
create or replace function execution.suppress_reported_lead(
    p_tenant_id uuid, p_lead_id uuid, p_reason text, p_address text, p_actor text)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    update execution.leads as lead
       set suppressed_at = v_now,
           suppression_reason = p_reason,
           updated_at = v_now
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       and lead.suppressed_at is null
       and (p_address is null or lower(p_address) in (lower(lead.email), lower(lead.phone)));
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'lead.suppressed', 'lead:' || p_lead_id, p_reason);
    return true;
end
$$;
comment on function execution.suppress_reported_lead(uuid, uuid, text, text, text) is
    'Suppresses a lead because of a report of a provider, and records that. Returns false if nothing changed.';
revoke all on function execution.suppress_reported_lead(uuid, uuid, text, text, text) from public;

-- An erased person leaves no words of a provider behind, also if the report comes after the erasure.
create or replace function execution.record_delivery(
    p_tenant_id uuid, p_outbox_id uuid, p_run_id uuid, p_lead_id uuid, p_status text, p_message_id text, p_detail text,
    p_reported_at timestamptz)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    insert into execution.deliveries as known
           (tenant_id, outbox_id, run_id, status, message_id, detail, reported_at, received_at)
    select p_tenant_id, p_outbox_id, p_run_id, p_status, left(p_message_id, 500),
           case
               when not exists (select
                                  from execution.leads as lead
                                 where lead.tenant_id = p_tenant_id
                                   and lead.id = p_lead_id
                                   and lead.erasing_since is not null)
                   then p_detail
           end,
           least(coalesce(p_reported_at, v_now), v_now), v_now
        on conflict (tenant_id, outbox_id) do update
       set status = excluded.status,
           message_id = excluded.message_id,
           detail = excluded.detail,
           reported_at = excluded.reported_at,
           received_at = excluded.received_at
     where execution.delivery_rank(excluded.status) > execution.delivery_rank(known.status);
    return found;
end
$$;
comment on function execution.record_delivery(uuid, uuid, uuid, uuid, text, text, text, timestamptz) is
    'Stores the delivery status of an item, unless a status of the same or a higher rank is stored. Returns whether it was stored.';
revoke all on function execution.record_delivery(uuid, uuid, uuid, uuid, text, text, text, timestamptz) from public;

-- Locks in the order of an erasure: the lead, the send job, the item, its delivery status. The send job is locked only if the item is in doubt, so that a
-- storm of reports does not hold up the workers, which lock the send jobs of items that they reserve. An item that becomes in doubt at
-- this moment finds the callback: the resolver reads it as evidence (claim_doubts).
create or replace function execution.record_callback(
    p_tenant_id uuid, p_account_id uuid, p_idempotency_key text, p_message_id text, p_status text, p_proves_action boolean,
    p_delivery text default null, p_detail text default null, p_reported_at timestamptz default null,
    p_suppression text default null, p_is_about_address boolean default false, out verdict text, out is_delivery_new boolean,
    out is_suppressed boolean)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_item record;
    v_is_new boolean;
begin
    perform tenancy.require_tenant(p_tenant_id);
    is_delivery_new := false;
    is_suppressed := false;
    select item.id, item.run_id, item.job_id, item.recipient_id, item.recipient, account.provider
      into v_item
      from tenancy.provider_accounts as account
           join execution.channel_outbox as item
             on item.tenant_id = account.tenant_id
            and item.workspace_id = account.workspace_id
            and item.idempotency_key = p_idempotency_key
           join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
     where account.tenant_id = p_tenant_id
       and account.id = p_account_id
       and account.id = coalesce(item.moved_to_account_id, run.provider_account_id);
    if not found then
        verdict := 'unknown';
        return;
    end if;
    verdict := 'recorded';
    if p_suppression is not null and v_item.recipient_id is not null then
        is_suppressed := execution.suppress_reported_lead(
            p_tenant_id, v_item.recipient_id, p_suppression,
            case when p_is_about_address then coalesce(v_item.recipient, '') end, 'callback-' || v_item.provider);
    end if;
    insert into execution.provider_callbacks (tenant_id, account_id, idempotency_key, message_id, status, proves_action)
    values (p_tenant_id, p_account_id, p_idempotency_key, p_message_id, p_status, p_proves_action)
        on conflict do nothing;
    v_is_new := found;
    if p_proves_action
       and exists (select
                     from execution.channel_outbox as item
                    where item.tenant_id = p_tenant_id
                      and item.id = v_item.id
                      and item.status = 'queued'
                      and item.in_doubt_since is not null)
    then
        perform from execution.job_queue as job where job.tenant_id = p_tenant_id and job.id = v_item.job_id for no key update;
        perform
           from execution.channel_outbox as item
          where item.tenant_id = p_tenant_id
            and item.id = v_item.id
            and item.status = 'queued'
            and item.in_doubt_since is not null
            for no key update;
        if found then
            perform execution.settle_in_doubt(
                p_tenant_id, v_item.id, 'sent', p_message_id,
                v_item.provider || ' called back: ' || p_message_id || ' is ' || p_status, 'callback-' || v_item.provider);
            verdict := 'settled';
        end if;
    end if;
    if p_proves_action and verdict = 'recorded' and v_is_new
       and exists (select
                     from execution.channel_outbox as item
                    where item.tenant_id = p_tenant_id
                      and item.id = v_item.id
                      and item.status = 'failed')
    then
        perform execution.audit(p_tenant_id, null, null, v_item.run_id, v_item.job_id, v_item.id,
                                'callback-' || v_item.provider, 'item.contradicted',
                                'the provider called back: ' || p_message_id || ' is ' || p_status);
        verdict := 'contradicted';
    end if;
    if p_delivery is not null then
        is_delivery_new := execution.record_delivery(
            p_tenant_id, v_item.id, v_item.run_id, v_item.recipient_id, p_delivery, p_message_id, p_detail, p_reported_at);
    end if;
end
$$;
comment on function
    execution.record_callback(uuid, uuid, text, text, text, boolean, text, text, timestamptz, text, boolean) is
    'Stores a status callback of a provider about a call of this account of the tenant. A callback that proves the action '
    'settles an item in doubt at once. With p_delivery, the callback sets the delivery status of the item; with p_suppression, it '
    'suppresses the lead, with p_is_about_address only if the lead still has the address of the item. The verdict is settled, '
    'recorded, contradicted if the item was settled as failed, or unknown if no item of this account has this key.';
revoke all on function
    execution.record_callback(uuid, uuid, text, text, text, boolean, text, text, timestamptz, text, boolean)
    from public;
grant execute on function
    execution.record_callback(uuid, uuid, text, text, text, boolean, text, text, timestamptz, text, boolean)
    to postrider_app;

-- The audit log and the numbered events of campaigns.

create or replace function execution.audit(
    p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_run_id uuid, p_job_id uuid, p_outbox_id uuid,
    p_actor text, p_action text, p_note text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into execution.campaign_audit_log
           (tenant_id, campaign_id, phase_id, run_id, job_id, outbox_id, actor, action, note)
    values (p_tenant_id, p_campaign_id, p_phase_id, p_run_id, p_job_id, p_outbox_id, p_actor, p_action, p_note);
end
$$;
comment on function execution.audit(uuid, uuid, uuid, uuid, uuid, uuid, text, text, text) is
    'Adds a line to the audit log of campaigns.';
revoke all on function execution.audit(uuid, uuid, uuid, uuid, uuid, uuid, text, text, text) from public;

create or replace function execution.note_event(
    p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_type text, p_payload jsonb)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_sequence bigint;
    v_at timestamptz := clock_timestamp();
begin
    update execution.campaigns
       set sequence = sequence + 1
     where tenant_id = p_tenant_id
       and id = p_campaign_id
 returning sequence
      into strict v_sequence;
    -- The clock may step back; the times of the history never do.
    v_at := greatest(v_at, (select event.at
                              from execution.campaign_events as event
                             where event.tenant_id = p_tenant_id
                               and event.campaign_id = p_campaign_id
                               and event.sequence = v_sequence - 1));
    insert into execution.campaign_events (tenant_id, campaign_id, sequence, type, phase, at, payload)
    values (p_tenant_id, p_campaign_id, v_sequence, p_type, p_phase, v_at, p_payload);
    if p_type <> 'campaign_progress' then
        -- Not by publish_outbox, which publishes for the tenant that the session names; a worker names none.
        insert into m10_recovery.outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload, process_after)
        values (p_tenant_id, 'campaign', p_campaign_id::text, 'campaign.' || p_type,
                jsonb_build_object(
                    'type', p_type, 'campaignId', p_campaign_id, 'phase', p_phase, 'sequence', v_sequence,
                    'timestamp', to_char(v_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'payload', p_payload),
                v_now);
    end if;
    perform tenancy.send_hint('postrider_campaign_events');
    return v_sequence;
end
$$;
comment on function execution.note_event(uuid, uuid, text, text, jsonb) is
    'Writes the next event of a campaign and returns its number. The caller has locked the campaign. A change of a '
    'phase''s state is also published as a domain event; progress is not.';
revoke all on function execution.note_event(uuid, uuid, text, text, jsonb) from public;

create or replace function execution.tenants_with_old_history(p_before timestamptz)
returns table (tenant_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select distinct event.tenant_id
      from execution.campaign_events as event
     where event.at < least(p_before, now() - interval '1 hour')
$$;
comment on function execution.tenants_with_old_history(timestamptz) is
    'Returns the tenants with events that prune_campaign_events may delete. Locks nothing; prune_campaign_events then '
    'deletes per tenant.';
revoke all on function execution.tenants_with_old_history(timestamptz) from public;
grant execute on function execution.tenants_with_old_history(timestamptz) to postrider_worker;

create or replace function execution.prune_campaign_events(
    p_tenant_id uuid, p_before timestamptz, p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before  constant timestamptz := least(p_before, now() - interval '1 hour');
    v_removed bigint := 0::bigint;
    v_part    bigint;
    v_campaign record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Delete the events of a campaign in their order under the lock of its row, so that a reader never sees a gap
    -- in the middle.
    for v_campaign in
        select old.campaign_id, max(old.sequence) as through
          from (select event.campaign_id, event.sequence
                  from execution.campaign_events as event
                 where event.tenant_id = p_tenant_id
                   and event.at < v_before
                 order by event.at, event.campaign_id, event.sequence
                 limit p_limit) as old
         group by old.campaign_id
         order by old.campaign_id
    loop
        -- Skip a campaign that another transaction has locked; the next call prunes it.
        perform
           from execution.campaigns as campaign
          where campaign.tenant_id = p_tenant_id
            and campaign.id = v_campaign.campaign_id
            for no key update skip locked;
        continue when not found;
        update execution.campaigns as campaign
           set pruned_through = greatest(campaign.pruned_through, v_campaign.through)
         where campaign.tenant_id = p_tenant_id
           and campaign.id = v_campaign.campaign_id;
        delete from execution.campaign_events as event
         where event.tenant_id = p_tenant_id
           and event.campaign_id = v_campaign.campaign_id
           and event.sequence <= v_campaign.through;
        get diagnostics v_part = row_count;
        v_removed := v_removed + v_part;
    end loop;
    return v_removed;
end
$$;
comment on function execution.prune_campaign_events(uuid, timestamptz, integer) is
    'Deletes events of one tenant that are older than p_before, and never those of the last hour, about p_limit per '
    'call. Returns the number of deleted events. A reader that asks for a deleted event is told to take a snapshot.';
revoke all on function execution.prune_campaign_events(uuid, timestamptz, integer) from public;
grant execute on function execution.prune_campaign_events(uuid, timestamptz, integer) to postrider_worker;

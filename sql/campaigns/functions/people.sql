-- People: leads by their addresses, the end of a suppression, and erasure.

create or replace function execution.find_leads(p_tenant_id uuid, p_wanted text)
returns table (lead_id uuid)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select found.id
          from (select lead.id
                  from execution.leads as lead
                 where lead.tenant_id = p_tenant_id
                   and lower(lead.email) = lower(p_wanted)
                   and lead.email is not null
                 union
                select lead.id
                  from execution.leads as lead
                 where lead.tenant_id = p_tenant_id
                   and lead.phone = p_wanted
                   and lead.phone is not null
                 union
                select lead.id
                  from tenancy.workspaces as workspace
                       join execution.leads as lead
                         on lead.tenant_id = p_tenant_id
                        and lead.workspace_id = workspace.id
                        and lead.identity = 'id:' || p_wanted
                 where workspace.tenant_id = p_tenant_id
                 union
                select lead.id
                  from execution.leads as lead
                 where lead.tenant_id = p_tenant_id
                   and lead.external_id = p_wanted
                   and lead.external_id is not null
                   and lead.identity not like 'id:%') as found
         order by found.id;
end
$$;
comment on function execution.find_leads(uuid, text) is
    'Returns the leads of the tenant with this e-mail address, in upper or lower case, this phone number or this external id.';
revoke all on function execution.find_leads(uuid, text) from public;
grant execute on function execution.find_leads(uuid, text) to postrider_app, postrider_read;

create or replace function execution.address_hashes(p_tenant_id uuid, p_email text, p_phone text, p_external_id text)
returns bytea[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(sha256(key.outer_pad || sha256(key.inner_pad || convert_to(address.text, 'UTF8')))), '{}')
      from execution.suppression_keys as key
           cross join unnest(array['email:' || lower(p_email), 'phone:' || p_phone, 'id:' || p_external_id]) as address (text)
     where key.tenant_id = p_tenant_id
       and address.text is not null
$$;
comment on function execution.address_hashes(uuid, text, text, text) is
    'Returns HMAC-SHA256 of each address that is not null, under the key of the tenant. Returns nothing if the tenant has '
    'no key yet.';
revoke all on function execution.address_hashes(uuid, text, text, text) from public;

create or replace function execution.suppress_erased_leads(p_tenant_id uuid, p_workspace_id uuid, p_lead_ids uuid[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_now constant timestamptz := now();
begin
    update execution.leads as lead
       set suppressed_at = kept.suppressed_at,
           suppression_reason = 'suppressed before erasure',
           updated_at = v_now
      from (select imported.id, min(known.suppressed_at) as suppressed_at
              from execution.leads as imported
                   cross join lateral unnest(execution.address_hashes(p_tenant_id, imported.email, imported.phone,
                                                                      imported.external_id)) as address (hash)
                   join execution.suppressed_addresses as known
                     on known.tenant_id = p_tenant_id
                    and known.workspace_id = p_workspace_id
                    and known.hash = address.hash
             where imported.tenant_id = p_tenant_id
               and imported.id = any (p_lead_ids)
               and imported.suppressed_at is null
             group by imported.id) as kept
     where lead.tenant_id = p_tenant_id
       and lead.id = kept.id;
end
$$;
comment on function execution.suppress_erased_leads(uuid, uuid, uuid[]) is
    'Suppresses those of the leads that have an address of an erased person who was suppressed.';
revoke all on function execution.suppress_erased_leads(uuid, uuid, uuid[]) from public;

create or replace function execution.unsuppress_lead(
    p_tenant_id uuid, p_lead_id uuid, p_note text, p_actor text, out is_known boolean, out also_suppressed uuid[])
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_now constant timestamptz := now();
    v_lead record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if coalesce(btrim(p_note), '') = '' then
        raise exception 'the note must say why messages may be sent again' using errcode = 'invalid_parameter_value';
    end if;
    select lead.*
      into v_lead
      from execution.leads as lead
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       for no key update;
    is_known := found;
    also_suppressed := '{}';
    if not is_known then
        return;
    end if;
    if v_lead.erasing_since is not null then
        raise exception 'lead % is erased or waits for its erasure, and stays suppressed', p_lead_id
            using errcode = 'invalid_parameter_value', hint = 'Import the person again to make a new lead.';
    end if;
    also_suppressed := array(
        select other.id
          from execution.leads as other
         where other.tenant_id = p_tenant_id
           and other.workspace_id = v_lead.workspace_id
           and lower(other.email) = lower(v_lead.email)
           and other.suppressed_at is not null
           and other.id <> p_lead_id
         union
        select other.id
          from execution.leads as other
         where other.tenant_id = p_tenant_id
           and other.workspace_id = v_lead.workspace_id
           and other.phone = v_lead.phone
           and other.suppressed_at is not null
           and other.id <> p_lead_id
         order by 1);
    if v_lead.suppressed_at is null then
        return;
    end if;
    update execution.leads as lead
       set suppressed_at = null,
           suppression_reason = null,
           updated_at = v_now
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id;
    -- Otherwise the next import would suppress the lead again.
    delete from execution.suppressed_addresses as known
     where known.tenant_id = p_tenant_id
       and known.workspace_id = v_lead.workspace_id
       and known.hash = any (execution.address_hashes(p_tenant_id, v_lead.email, v_lead.phone, v_lead.external_id));
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'lead.unsuppressed', 'lead:' || p_lead_id, left(p_note, 2000));
end
$$;
comment on function execution.unsuppress_lead(uuid, uuid, text, text) is
    'Ends the suppression of a lead of the tenant, with a note for the audit log. Repeating the call changes nothing. '
    'also_suppressed has the other suppressed leads with its e-mail address or phone number, which still keep messages from it.';
revoke all on function execution.unsuppress_lead(uuid, uuid, text, text) from public;
grant execute on function execution.unsuppress_lead(uuid, uuid, text, text) to postrider_app;

-- Erasure has two steps in two transactions. The first one suppresses the lead. A reservation that did not see that holds the
-- lock of its send job until its commit, so the second step waits for these locks and then sees every item of the lead.
create or replace function execution.begin_erasure(p_tenant_id uuid, p_lead_id uuid)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update execution.leads as lead
       set erasing_since = v_now,
           suppressed_at = coalesce(lead.suppressed_at, v_now),
           suppression_reason = coalesce(lead.suppression_reason, 'erased'),
           updated_at = v_now
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       and lead.erasing_since is null;
    return found or exists (select from execution.leads as lead where lead.tenant_id = p_tenant_id and lead.id = p_lead_id);
end
$$;
comment on function execution.begin_erasure(uuid, uuid) is
    'First step of an erasure: suppresses the lead. Commit it before erase_lead. Returns false if the tenant has no such lead.';
revoke all on function execution.begin_erasure(uuid, uuid) from public;
grant execute on function execution.begin_erasure(uuid, uuid) to postrider_app;

create or replace function execution.keep_suppression(
    p_tenant_id uuid, p_workspace_id uuid, p_lead_id uuid, p_email text, p_phone text, p_external_id text, p_at timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_now constant timestamptz := now();
begin
    insert into execution.suppression_keys (tenant_id, inner_pad, outer_pad)
    select p_tenant_id, fresh.inner_pad, fresh.outer_pad
      from tenancy.new_hmac_key() as fresh
        on conflict do nothing;
    insert into execution.suppressed_addresses (tenant_id, workspace_id, hash, suppressed_at)
    select p_tenant_id, p_workspace_id, address.hash, p_at
      from unnest(execution.address_hashes(p_tenant_id, p_email, p_phone, p_external_id)) as address (hash)
        on conflict do nothing;
    -- The erased lead kept messages from the other leads with its address. From now on they are suppressed themselves.
    update execution.leads as other
       set suppressed_at = p_at,
           suppression_reason = 'suppressed before erasure',
           updated_at = v_now
     where other.tenant_id = p_tenant_id
       and other.workspace_id = p_workspace_id
       and lower(other.email) = lower(p_email)
       and other.email is not null
       and other.suppressed_at is null
       and other.id <> p_lead_id;
    update execution.leads as other
       set suppressed_at = p_at,
           suppression_reason = 'suppressed before erasure',
           updated_at = v_now
     where other.tenant_id = p_tenant_id
       and other.workspace_id = p_workspace_id
       and other.phone = p_phone
       and other.suppressed_at is null
       and other.id <> p_lead_id;
end
$$;
comment on function execution.keep_suppression(uuid, uuid, uuid, text, text, text, timestamptz) is
    'Keeps the suppression of a lead that is being erased: as HMACs of its addresses, and on the other leads that have them.';
revoke all on function execution.keep_suppression(uuid, uuid, uuid, text, text, text, timestamptz) from public;

-- One statement per table. A table that gets data of people adds its statement below, with a guard that lets the transaction of an
-- erasure empty its columns (tenancy.refuse_unless_erased_or_removed).
create or replace function execution.erase_lead(
    p_tenant_id uuid, p_lead_id uuid, p_actor text,
    out is_known boolean, out erased_at timestamptz, out items bigint, out messages bigint, out open_items bigint,
    out open_messages bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    c_erased constant text := 'erased';
    v_now constant timestamptz := now();
    v_lead record;
    v_job_id uuid;
    v_items uuid[];
    v_keys text[];
    v_messages uuid[];
    -- The names under which chat providers know the person.
    v_senders text[];
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    select lead.*
      into v_lead
      from execution.leads as lead
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       for update;
    is_known := found;
    items := 0;
    messages := 0;
    open_items := 0;
    open_messages := 0;
    if not is_known then
        return;
    end if;
    if v_lead.erased_at is not null then
        select erasure.at, erasure.items, erasure.messages
          into erased_at, items, messages
          from execution.erasures as erasure
         where erasure.tenant_id = p_tenant_id
           and erasure.lead_id = p_lead_id;
        return;
    end if;
    if v_lead.erasing_since is null or v_lead.erasing_since >= v_now then
        raise exception 'begin_erasure must be committed before erase_lead' using errcode = 'invalid_parameter_value';
    end if;

    -- Lock one job at a time and release it at once, as await_reservations does.
    perform set_config('lock_timeout', '10s', true);
    for v_job_id in
        select job.id
          from execution.job_queue as job
         where job.tenant_id = p_tenant_id
           and job.status = 'locked'
           and p_lead_id = any (job.item_ids)
    loop
        begin
            perform
               from execution.job_queue as job
              where job.tenant_id = p_tenant_id
                and job.id = v_job_id
                for no key update;
            raise sqlstate 'PR000';
        exception when sqlstate 'PR000' then
            null; -- the rollback to the savepoint released the lock
        end;
    end loop;

    -- The key of an item is a function of its run and lead, so the unique index finds the items of a person.
    select coalesce(array_agg(item.id), '{}'), coalesce(array_agg(item.idempotency_key), '{}'),
           count(*) filter (where item.status = 'queued' and item.is_begun)
      into v_items, v_keys, open_items
      from execution.campaign_runs as run
           cross join lateral (
               select item.id, item.idempotency_key, item.status,
                      item.reserved_by is not null or item.in_doubt_since is not null as is_begun
                 from execution.channel_outbox as item
                where item.idempotency_key = execution.outbox_key(run.id, p_lead_id, run.key_part, run.scheduled_for)
                  and item.tenant_id = p_tenant_id
                  and item.workspace_id = run.workspace_id
               offset 0) as item
     where run.tenant_id = p_tenant_id
       and run.workspace_id = v_lead.workspace_id;
    v_senders := array_remove(array[v_lead.email, lower(v_lead.email), v_lead.phone, ltrim(v_lead.phone, '+')], null);
    select coalesce(array_agg(message.id), '{}'),
           count(*) filter (where message.status = 'accepted' or message.leased_until is not null
                                  or reply.status in ('pending', 'sending'))
      into v_messages, open_messages
      from channels.channel_messages as message
           left join channels.channel_outbox as reply
                  on reply.tenant_id = message.tenant_id
                 and reply.channel_message_id = message.id
     where message.tenant_id = p_tenant_id
       and message.sender_id = any (v_senders);
    if open_items > 0 or open_messages > 0 then
        return;
    end if;
    items := cardinality(v_items)::bigint;
    messages := cardinality(v_messages)::bigint;
    erased_at := v_now;

    -- The record comes first: the guards below ask for it.
    insert into execution.erasures (tenant_id, lead_id, at, actor, items, messages)
    values (p_tenant_id, p_lead_id, v_now, p_actor, items, messages);
    update execution.channel_outbox as item
       set recipient = null,
           error = case when item.error is not null then c_erased end,
           message_hash = null
     where item.tenant_id = p_tenant_id
       and item.id = any (v_items);
    delete from execution.provider_callbacks as callback
     where callback.tenant_id = p_tenant_id
       and callback.idempotency_key = any (v_keys);
    update execution.job_queue as job
       set last_error = c_erased
     where job.tenant_id = p_tenant_id
       and (strpos(lower(job.last_error), lower(v_lead.email)) > 0 or strpos(job.last_error, v_lead.phone) > 0);
    update execution.campaign_audit_log as line
       set note = c_erased
     where line.tenant_id = p_tenant_id
       and line.note <> c_erased
       and (line.outbox_id = any (v_items)
            or strpos(lower(line.note), lower(v_lead.email)) > 0 or strpos(line.note, v_lead.phone) > 0);
    update tenancy.audit_log as line
       set note = c_erased
     where line.tenant_id = p_tenant_id
       and line.note <> c_erased
       and (line.subject = 'lead:' || p_lead_id
            or strpos(lower(line.note), lower(v_lead.email)) > 0 or strpos(line.note, v_lead.phone) > 0);
    update tenancy.requests as request
       set body = null
     where request.tenant_id = p_tenant_id
       and (strpos(lower(request.body), lower(v_lead.email)) > 0 or strpos(request.body, v_lead.phone) > 0
            or strpos(request.body, p_lead_id::text) > 0);
    -- The rows of messages stay: a provider delivers a message again for days, and its id must then be known.
    update channels.channel_outbox as reply
       set recipient_id = c_erased,
           payload = '{}',
           last_error = case when reply.last_error is not null then c_erased end,
           delivery_error = case when reply.delivery_error is not null then c_erased end
     where reply.tenant_id = p_tenant_id
       and reply.channel_message_id = any (v_messages);
    update channels.channel_messages as message
       set sender_id = c_erased,
           thread = null,
           text = c_erased,
           user_id = null,
           last_error = case when message.last_error is not null then c_erased end,
           reply = null
     where message.tenant_id = p_tenant_id
       and message.id = any (v_messages);
    delete from channels.channel_links as link
     where link.tenant_id = p_tenant_id
       and link.sender_id = any (v_senders);
    delete from execution.lead_list_members as member
     where member.tenant_id = p_tenant_id
       and member.lead_id = p_lead_id
       and member.list_id in (select list.id from execution.lead_lists as list where list.tenant_id = p_tenant_id);
    -- The first step suppressed the lead at the time at which it began, if it was not suppressed before.
    if v_lead.suppressed_at < v_lead.erasing_since then
        perform execution.keep_suppression(p_tenant_id, v_lead.workspace_id, p_lead_id, v_lead.email, v_lead.phone,
                                           v_lead.external_id, v_lead.suppressed_at);
    end if;
    update execution.leads as lead
       set identity = 'erased:' || lead.id::text,
           external_id = null,
           email = null,
           phone = null,
           timezone = null,
           attributes = '{}',
           suppression_reason = c_erased,
           erased_at = v_now,
           updated_at = v_now
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'lead.erased', 'lead:' || p_lead_id);
end
$$;
comment on function execution.erase_lead(uuid, uuid, text) is
    'Second step of an erasure: removes the data of a lead from every table of the tenant and records that. Keys stay, because they are '
    'hashes. Changes nothing while an item of the lead is in flight or in doubt (open_items), or a chat message of the '
    'person is being answered (open_messages). Repeating the call changes nothing.';
revoke all on function execution.erase_lead(uuid, uuid, text) from public;
grant execute on function execution.erase_lead(uuid, uuid, text) to postrider_app;

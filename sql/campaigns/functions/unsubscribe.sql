-- Unsubscribing: links that a person gets, and suppressions for one list.

-- A token has 48 bytes: the run, the lead, and half of an HMAC under the key of the tenant. It has no data of the person, and is the same
-- each time, so that a message can be rendered again.
create or replace function execution.unsubscribe_token(p_tenant_id uuid, p_run_id uuid, p_lead_id uuid)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select translate(
               encode(named.parts
                      || substring(sha256(key.outer_pad
                                          || sha256(key.inner_pad || convert_to('unsubscribe:', 'UTF8') || named.parts))
                                   for 16),
                      'base64'),
               '+/', '-_')
      from execution.suppression_keys as key
           cross join (select uuid_send(p_run_id) || uuid_send(p_lead_id) as parts) as named
     where key.tenant_id = p_tenant_id
$$;
comment on function execution.unsubscribe_token(uuid, uuid, uuid) is
    'Returns the signed token of a lead and a run, 64 characters of base64url. Null if the tenant has no key.';
revoke all on function execution.unsubscribe_token(uuid, uuid, uuid) from public;

create or replace function execution.unsubscribe_tokens(p_tenant_id uuid, p_run_id uuid, p_lead_ids uuid[])
returns text[]
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    if not exists (select from execution.suppression_keys as key where key.tenant_id = p_tenant_id)
       or not exists (select from execution.campaign_runs as run where run.tenant_id = p_tenant_id and run.id = p_run_id)
    then
        return null;
    end if;
    return (select array_agg(execution.unsubscribe_token(p_tenant_id, p_run_id, lead.id) order by lead.place)
              from unnest(p_lead_ids) with ordinality as lead (id, place));
end
$$;
comment on function execution.unsubscribe_tokens(uuid, uuid, uuid[]) is
    'Returns the tokens of leads for links to unsubscribe in messages of a run, in the given order. Null if the tenant has no such '
    'run or no key; the deployment of a run over an e-mail phase makes the key.';
revoke all on function execution.unsubscribe_tokens(uuid, uuid, uuid[]) from public;
grant execute on function execution.unsubscribe_tokens(uuid, uuid, uuid[]) to postrider_app, postrider_worker;

create or replace function execution.unsubscribe_subject(
    p_tenant_id uuid, p_token text, out run_id uuid, out lead_id uuid, out list_id uuid)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bytes bytea;
    v_run_id uuid;
    v_lead_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_token is null or p_token !~ '^[A-Za-z0-9_-]{64}$' then
        return;
    end if;
    v_bytes := decode(translate(p_token, '-_', '+/'), 'base64');
    v_run_id := encode(substring(v_bytes from 1 for 16), 'hex')::uuid;
    v_lead_id := encode(substring(v_bytes from 17 for 16), 'hex')::uuid;
    -- Hashes are compared, because the time of a comparison of the tokens would reveal how much of a guess is right.
    if sha256(convert_to(execution.unsubscribe_token(p_tenant_id, v_run_id, v_lead_id), 'UTF8'))
       is distinct from sha256(convert_to(p_token, 'UTF8'))
       or not exists (select from execution.leads as lead where lead.tenant_id = p_tenant_id and lead.id = v_lead_id)
    then
        return;
    end if;
    select v_run_id, v_lead_id,
           (select phase.list_id
              from execution.campaign_phases as phase
             where phase.tenant_id = p_tenant_id
               and phase.id = run.phase_id)
      into run_id, lead_id, list_id
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = v_run_id;
end
$$;
comment on function execution.unsubscribe_subject(uuid, text) is
    'Verifies a token and returns its run and lead, and the list of the phase; nulls if the signature is not that of the tenant.';
revoke all on function execution.unsubscribe_subject(uuid, text) from public;
grant execute on function execution.unsubscribe_subject(uuid, text) to postrider_app;

create or replace function execution.unsubscribe(p_tenant_id uuid, p_token text, p_scope text, p_reason text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    c_actor constant text := 'recipient';
    v_subject record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if coalesce(p_scope, '') not in ('workspace', 'list') then
        raise exception 'the scope is workspace or list, not %', coalesce(p_scope, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    v_subject := execution.unsubscribe_subject(p_tenant_id, p_token);
    if v_subject.lead_id is null then
        return 'unknown';
    end if;
    if p_scope = 'list' and v_subject.list_id is not null then
        perform execution.add_list_suppression(p_tenant_id, v_subject.lead_id, v_subject.list_id, p_reason, c_actor);
        return 'list';
    end if;
    perform execution.suppress_lead(p_tenant_id, v_subject.lead_id, p_reason, c_actor);
    return 'workspace';
end
$$;
comment on function execution.unsubscribe(uuid, text, text, text) is
    'Suppresses the lead of a token, for the list of its phase or for the workspace, and returns which of them; a phase without a '
    'list counts as the workspace. Returns unknown if the token is not valid. Repeating the call changes nothing.';
revoke all on function execution.unsubscribe(uuid, text, text, text) from public;
grant execute on function execution.unsubscribe(uuid, text, text, text) to postrider_app;

create or replace function execution.add_list_suppression(
    p_tenant_id uuid, p_lead_id uuid, p_list_id uuid, p_reason text, p_actor text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into execution.list_suppressions (tenant_id, list_id, lead_id, reason)
    select p_tenant_id, p_list_id, lead.id, left(coalesce(nullif(btrim(p_reason), ''), 'suppressed'), 255)
      from execution.leads as lead
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       and lead.erasing_since is null
        on conflict do nothing;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        select p_tenant_id, p_actor, 'lead.suppressed', 'lead:' || p_lead_id, 'list ' || list.name || ': ' || p_reason
          from execution.lead_lists as list
         where list.tenant_id = p_tenant_id
           and list.id = p_list_id;
    end if;
end
$$;
comment on function execution.add_list_suppression(uuid, uuid, uuid, text, text) is
    'Suppresses a lead for a list, and records that. Changes nothing for a lead that is suppressed for it already, or erased.';
revoke all on function execution.add_list_suppression(uuid, uuid, uuid, text, text) from public;

create or replace function execution.suppress_on_list(
    p_tenant_id uuid, p_lead_id uuid, p_list text, p_reason text, p_actor text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select lead.id, list.id as list_id
      into v_found
      from execution.leads as lead
           left join execution.lead_lists as list
                  on list.tenant_id = p_tenant_id
                 and list.workspace_id = lead.workspace_id
                 and list.name = p_list
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id;
    if not found then
        return 'no_lead';
    end if;
    if v_found.list_id is null then
        return 'no_list';
    end if;
    perform execution.add_list_suppression(p_tenant_id, p_lead_id, v_found.list_id, p_reason, p_actor);
    return 'done';
end
$$;
comment on function execution.suppress_on_list(uuid, uuid, text, text, text) is
    'Suppresses a lead of the tenant for the list of this name: campaigns over the list skip it, and every other lead with its '
    'address. Returns done, no_lead or no_list. Repeating the call changes nothing.';
revoke all on function execution.suppress_on_list(uuid, uuid, text, text, text) from public;
grant execute on function execution.suppress_on_list(uuid, uuid, text, text, text) to postrider_app;

create or replace function execution.leads_with_the_address(p_tenant_id uuid, p_lead_id uuid)
returns table (lead_id uuid)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select other.id
      from execution.leads as lead
           join execution.leads as other
             on other.tenant_id = p_tenant_id
            and other.workspace_id = lead.workspace_id
            and lower(other.email) = lower(lead.email)
            and other.email is not null
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       and other.id <> p_lead_id
     union
    select other.id
      from execution.leads as lead
           join execution.leads as other
             on other.tenant_id = p_tenant_id
            and other.workspace_id = lead.workspace_id
            and other.phone = lead.phone
            and other.phone is not null
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       and other.id <> p_lead_id
$$;
comment on function execution.leads_with_the_address(uuid, uuid) is
    'Returns the other leads of the workspace with the e-mail address or the phone number of a lead.';
revoke all on function execution.leads_with_the_address(uuid, uuid) from public;

create or replace function execution.unsuppress_on_list(
    p_tenant_id uuid, p_lead_id uuid, p_list text, p_note text, p_actor text, out verdict text, out also_suppressed uuid[])
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_found record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if coalesce(btrim(p_note), '') = '' then
        raise exception 'the note must say why messages may be sent again' using errcode = 'invalid_parameter_value';
    end if;
    also_suppressed := '{}';
    select lead.*, list.id as list_id
      into v_found
      from execution.leads as lead
           left join execution.lead_lists as list
                  on list.tenant_id = p_tenant_id
                 and list.workspace_id = lead.workspace_id
                 and list.name = p_list
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id;
    verdict := case when not found then 'no_lead' when v_found.list_id is null then 'no_list' else 'done' end;
    if verdict <> 'done' then
        return;
    end if;
    delete from execution.list_suppressions as listed
     where listed.tenant_id = p_tenant_id
       and listed.list_id = v_found.list_id
       and listed.lead_id = p_lead_id;
    if found then
        -- Otherwise the next import would suppress the lead again.
        delete from execution.suppressed_list_addresses as known
         where known.tenant_id = p_tenant_id
           and known.list_id = v_found.list_id
           and known.hash = any (execution.address_hashes(p_tenant_id, v_found.email, v_found.phone, v_found.external_id));
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        values (p_tenant_id, p_actor, 'lead.unsuppressed', 'lead:' || p_lead_id, left('list ' || p_list || ': ' || p_note, 2000));
    end if;
    also_suppressed := array(
        select listed.lead_id
          from execution.leads_with_the_address(p_tenant_id, p_lead_id) as other
               join execution.list_suppressions as listed
                 on listed.tenant_id = p_tenant_id
                and listed.list_id = v_found.list_id
                and listed.lead_id = other.lead_id
         order by 1);
end
$$;
comment on function execution.unsuppress_on_list(uuid, uuid, text, text, text) is
    'Ends the suppression of a lead for the list of this name, with a note for the audit log. The verdict is done, no_lead or '
    'no_list; repeating the call changes nothing. also_suppressed has the other leads with its address that are suppressed for '
    'the list, and still keep messages from it.';
revoke all on function execution.unsuppress_on_list(uuid, uuid, text, text, text) from public;
grant execute on function execution.unsuppress_on_list(uuid, uuid, text, text, text) to postrider_app;

create or replace function execution.list_suppression_reason(
    p_tenant_id uuid, p_list_id uuid, p_lead_id uuid, p_channel text, p_email text, p_phone text)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select coalesce(
               (select listed.reason
                  from execution.list_suppressions as listed
                 where listed.tenant_id = p_tenant_id
                   and listed.list_id = p_list_id
                   and listed.lead_id = p_lead_id),
               (select listed.reason
                  from execution.leads as other
                       join execution.list_suppressions as listed
                         on listed.tenant_id = p_tenant_id
                        and listed.list_id = p_list_id
                        and listed.lead_id = other.id
                 where other.tenant_id = p_tenant_id
                   and lower(other.email) = lower(p_email)
                   and other.email is not null
                   and p_channel = 'email'
                 limit 1),
               (select listed.reason
                  from execution.leads as other
                       join execution.list_suppressions as listed
                         on listed.tenant_id = p_tenant_id
                        and listed.list_id = p_list_id
                        and listed.lead_id = other.id
                 where other.tenant_id = p_tenant_id
                   and other.phone = p_phone
                   and other.phone is not null
                   and p_channel = 'voice'
                 limit 1))
$$;
comment on function execution.list_suppression_reason(uuid, uuid, uuid, text, text, text) is
    'Returns why a lead, or another lead with its address on this channel, is suppressed for a list; null if none is.';
revoke all on function execution.list_suppression_reason(uuid, uuid, uuid, text, text, text) from public;

create or replace function execution.keep_list_suppressions(
    p_tenant_id uuid, p_workspace_id uuid, p_lead_id uuid, p_email text, p_phone text, p_external_id text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
begin
    if not exists (select
                     from execution.list_suppressions as listed
                    where listed.tenant_id = p_tenant_id
                      and listed.lead_id = p_lead_id
                      and listed.list_id in (select list.id
                                               from execution.lead_lists as list
                                              where list.tenant_id = p_tenant_id
                                                and list.workspace_id = p_workspace_id))
    then
        return;
    end if;
    perform execution.make_suppression_key(p_tenant_id);
    insert into execution.suppressed_list_addresses (tenant_id, list_id, hash, suppressed_at)
    select p_tenant_id, listed.list_id, address.hash, listed.suppressed_at
      from execution.list_suppressions as listed
           cross join lateral unnest(execution.address_hashes(p_tenant_id, p_email, p_phone, p_external_id)) as address (hash)
     where listed.tenant_id = p_tenant_id
       and listed.lead_id = p_lead_id
        on conflict do nothing;
    -- The erased lead kept messages from the other leads with its address. From now on they are suppressed themselves.
    insert into execution.list_suppressions (tenant_id, list_id, lead_id, suppressed_at, reason)
    select p_tenant_id, listed.list_id, other.lead_id, listed.suppressed_at, 'suppressed before erasure'
      from execution.list_suppressions as listed
           cross join execution.leads_with_the_address(p_tenant_id, p_lead_id) as other
     where listed.tenant_id = p_tenant_id
       and listed.lead_id = p_lead_id
        on conflict do nothing;
    delete from execution.list_suppressions as listed
     where listed.tenant_id = p_tenant_id
       and listed.lead_id = p_lead_id;
end
$$;
comment on function execution.keep_list_suppressions(uuid, uuid, uuid, text, text, text) is
    'Keeps the suppressions for lists of a lead that is being erased: as HMACs of its addresses, and on the other leads that have '
    'them.';
revoke all on function execution.keep_list_suppressions(uuid, uuid, uuid, text, text, text) from public;

create or replace function execution.suppress_erased_members(p_tenant_id uuid, p_list_id uuid, p_lead_ids uuid[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
begin
    insert into execution.list_suppressions (tenant_id, list_id, lead_id, suppressed_at, reason)
    select p_tenant_id, p_list_id, imported.id, min(known.suppressed_at), 'suppressed before erasure'
      from execution.leads as imported
           cross join lateral unnest(execution.address_hashes(p_tenant_id, imported.email, imported.phone,
                                                              imported.external_id)) as address (hash)
           join execution.suppressed_list_addresses as known
             on known.tenant_id = p_tenant_id
            and known.list_id = p_list_id
            and known.hash = address.hash
     where imported.tenant_id = p_tenant_id
       and imported.id = any (p_lead_ids)
     group by imported.id
        on conflict do nothing;
end
$$;
comment on function execution.suppress_erased_members(uuid, uuid, uuid[]) is
    'Suppresses those of the leads for a list that have an address of an erased person who was suppressed for it.';
revoke all on function execution.suppress_erased_members(uuid, uuid, uuid[]) from public;

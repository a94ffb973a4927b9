-- Imports of leads into lists, and the suppression of leads.

-- A line is about the lead
--   1. of the same identity: its external id, else its e-mail address, else its phone number; else
--   2. with its external id, if an import named that id after the lead was known by an address; else
--   3. with its address, if exactly one lead has that address: for a line without an external id any lead, in the
--      workspace or in this intake; for a line with one, a lead without one.
-- A line without an external id whose address several leads have is left out. Rules 2 and 3 recognise a lead by another
-- identity.
create or replace function execution.import_leads(
    p_tenant_id uuid, p_intake uuid, p_workspace_id uuid, p_list text, p_list_id uuid)
returns table (list_id uuid, added bigint, updated bigint, repeated bigint, matched bigint, ambiguous bigint[])
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- Plan the look-ups for each call: a plan that a session made for a small table would stay when the table has grown.
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_tenant_id constant uuid := p_tenant_id;
    v_now constant timestamptz := now();
    v_list_id uuid;
    v_identities text[];
    v_external_ids text[];
    v_mails text[];
    v_phones text[];
    v_known jsonb;
    v_later jsonb;
    v_by_mail jsonb;
    v_by_phone jsonb;
    v_lines bigint;
    v_people bigint;
    v_added bigint;
    v_matched bigint;
    v_ambiguous bigint[];
    -- The imported leads, if the tenant keeps suppressions of erased people.
    v_imported uuid[];
    v_keeps_suppressions constant boolean := exists (select
                                                       from execution.suppressed_addresses as known
                                                      where known.tenant_id = p_tenant_id
                                                        and known.workspace_id = p_workspace_id)
                                             or exists (select
                                                          from execution.suppressed_list_addresses as known
                                                         where known.tenant_id = p_tenant_id);
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Import one intake at a time per workspace: two imports of the same person would not see each other's lead.
    -- The lock is on a row that only this tenant can reach.
    perform
       from tenancy.workspaces as workspace
      where workspace.tenant_id = v_tenant_id
        and workspace.id = p_workspace_id
        for no key update;
    insert into execution.lead_lists (id, tenant_id, workspace_id, name)
    values (p_list_id, v_tenant_id, p_workspace_id, p_list)
    on conflict (tenant_id, workspace_id, name) where name is not null do nothing;
    select list.id
      into strict v_list_id
      from execution.lead_lists as list
     where list.tenant_id = v_tenant_id
       and list.workspace_id = p_workspace_id
       and list.name = p_list;

    -- Look up the existing leads of all lines, one index lookup per value, and keep them as maps. A comparison with the
    -- whole array would compare every lead of the tenant with every line.
    select array_agg(intake.identity), array_agg(intake.external_id) filter (where intake.external_id is not null),
           array_agg(distinct lower(intake.email)) filter (where intake.email is not null),
           array_agg(distinct intake.phone) filter (where intake.email is null and intake.phone is not null)
      into v_identities, v_external_ids, v_mails, v_phones
      from execution.lead_intake as intake
     where intake.intake = p_intake;
    select jsonb_object_agg(known.identity, true)
      into v_known
      from unnest(v_identities) as wanted (identity)
           cross join lateral (
               select lead.identity
                 from execution.leads as lead
                where lead.tenant_id = v_tenant_id
                  and lead.workspace_id = p_workspace_id
                  and lead.identity = wanted.identity
                offset 0) as known;
    select jsonb_object_agg(later.external_id, later.identity)
      into v_later
      from unnest(v_external_ids) as wanted (external_id)
           cross join lateral (
               select lead.external_id, lead.identity
                 from execution.leads as lead
                where lead.tenant_id = v_tenant_id
                  and lead.workspace_id = p_workspace_id
                  and lead.external_id = wanted.external_id
                  and lead.external_id is not null
                  and lead.identity not like 'id:%'
                offset 0) as later;
    -- For each address: the lowest and the highest identity of the leads that have it, and whether one has an
    -- external id.
    select jsonb_object_agg(wanted.address, jsonb_build_array(holder.lowest, holder.highest, holder.is_named))
      into v_by_mail
      from unnest(v_mails) as wanted (address)
           cross join lateral (
               select min(lead.identity) as lowest, max(lead.identity) as highest,
                      bool_or(lead.external_id is not null) as is_named
                 from execution.leads as lead
                where lead.tenant_id = v_tenant_id
                  and lead.workspace_id = p_workspace_id
                  and lower(lead.email) = wanted.address
                  and lead.email is not null) as holder
     where holder.lowest is not null;
    select jsonb_object_agg(wanted.address, jsonb_build_array(holder.lowest, holder.highest, holder.is_named))
      into v_by_phone
      from unnest(v_phones) as wanted (address)
           cross join lateral (
               select min(lead.identity) as lowest, max(lead.identity) as highest,
                      bool_or(lead.external_id is not null) as is_named
                 from execution.leads as lead
                where lead.tenant_id = v_tenant_id
                  and lead.workspace_id = p_workspace_id
                  and lead.phone = wanted.address
                  and lead.phone is not null) as holder
     where holder.lowest is not null;

    -- The checks of foreign keys are queries, too, three for each line, so keep their plans. They have one index to use, and
    -- do not read a table that is small now from end to end.
    perform set_config('plan_cache_mode', 'force_generic_plan', true);
    with lines as materialized (
        delete from execution.lead_intake as intake
         where intake.intake = p_intake
     returning intake.*
    ), own as materialized (
        select lines.*,
               lower(lines.email) as mail,
               case when lines.email is null then lines.phone end as number,
               lines.external_id is not null as is_named,
               coalesce(v_known ? lines.identity, false) as is_known,
               -- Number of lines with an external id that have the same address.
               count(*) filter (where lines.external_id is not null)
                   over (partition by lower(lines.email), case when lines.email is null then lines.phone end) as claims,
               v_later ->> lines.external_id as later,
               case when lines.email is null then v_by_phone -> lines.phone else v_by_mail -> lower(lines.email) end as holder
          from lines
    ), looked_up as (
        select own.*, own.holder ->> 0 as lowest, own.holder ->> 1 as highest, (own.holder ->> 2)::boolean as holder_is_named
          from own
    ), named as materialized (
        -- Decide lines with an external id first: the others may be about the same leads.
        select looked_up.*,
               case when not looked_up.is_named then null
                    when looked_up.is_known then looked_up.identity
                    when looked_up.later is not null then looked_up.later
                    when looked_up.lowest = looked_up.highest and not looked_up.holder_is_named and looked_up.claims = 1
                    then looked_up.lowest
                    else looked_up.identity
                end as decided
          from looked_up
    ), compared as (
        select named.*,
               least(named.lowest,
                     case when named.mail is not null then min(named.decided) over (partition by named.mail) end,
                     case when named.number is not null then min(named.decided) over (partition by named.phone) end) as first,
               greatest(named.highest,
                        case when named.mail is not null then max(named.decided) over (partition by named.mail) end,
                        case when named.number is not null then max(named.decided) over (partition by named.phone) end) as last
          from named
    ), resolved as materialized (
        select compared.line, compared.lead_id, compared.external_id, compared.email, compared.phone, compared.timezone,
               compared.attributes, compared.suppression_reason, compared.identity as own_identity,
               case when compared.is_named then compared.decided
                    when compared.is_known then compared.identity
                    else coalesce(compared.first, compared.identity)
                end as identity,
               not compared.is_named and not compared.is_known and compared.first <> compared.last as is_ambiguous
          from compared
    ), counted as materialized (
        select resolved.*, count(*) over (partition by resolved.identity) as times
          from resolved
         where resolved.is_ambiguous is not true
    ), people as (
        select counted.lead_id, counted.identity, counted.external_id, counted.email, counted.phone, counted.timezone,
               counted.attributes, counted.suppression_reason
          from counted
         where counted.times = 1
     union all
        -- The last line about a person counts, but no line revokes a suppression of another line.
        select (array_agg(counted.lead_id order by counted.line))[1],
               counted.identity,
               (array_agg(counted.external_id order by counted.line desc) filter (where counted.external_id is not null))[1],
               (array_agg(counted.email order by counted.line desc) filter (where counted.email is not null))[1],
               (array_agg(counted.phone order by counted.line desc) filter (where counted.phone is not null))[1],
               (array_agg(counted.timezone order by counted.line desc) filter (where counted.timezone is not null))[1],
               coalesce(jsonb_object_agg(entry.key, entry.value order by counted.line) filter (where entry.key is not null), '{}'),
               max(counted.suppression_reason)
          from counted
          left join lateral jsonb_each(counted.attributes) as entry on true
         where counted.times > 1
         group by counted.identity
    ), merged as (
        insert into execution.leads as lead
               (id, tenant_id, workspace_id, identity, external_id, email, phone, timezone, attributes,
                suppressed_at, suppression_reason)
        -- Ordered by identity, so that two imports cannot deadlock.
        select people.lead_id, v_tenant_id, p_workspace_id, people.identity, people.external_id, people.email,
               people.phone, people.timezone, people.attributes,
               case when people.suppression_reason is not null then v_now end, people.suppression_reason
          from people
         order by people.identity
            on conflict (tenant_id, workspace_id, identity) where identity is not null do update
           set external_id = coalesce(excluded.external_id, lead.external_id),
               email = coalesce(excluded.email, lead.email),
               phone = coalesce(excluded.phone, lead.phone),
               timezone = coalesce(excluded.timezone, lead.timezone),
               attributes = lead.attributes || excluded.attributes,
               suppressed_at = coalesce(lead.suppressed_at, excluded.suppressed_at),
               suppression_reason = coalesce(lead.suppression_reason, excluded.suppression_reason),
               updated_at = v_now
     returning lead.id, lead.xmax = 0 as is_new
    ), members as (
        insert into execution.lead_list_members (tenant_id, list_id, lead_id)
        select v_tenant_id, v_list_id, merged.id
          from merged
            on conflict do nothing
    )
    select (select count(*) from lines),
           count(*),
           count(*) filter (where merged.is_new),
           (select count(*) from counted where counted.identity <> counted.own_identity),
           (select coalesce(array_agg(resolved.line order by resolved.line), '{}') from resolved where resolved.is_ambiguous),
           array_agg(merged.id) filter (where v_keeps_suppressions)
      into v_lines, v_people, v_added, v_matched, v_ambiguous, v_imported
      from merged;
    if v_imported is not null then
        perform execution.suppress_erased_leads(v_tenant_id, p_workspace_id, v_imported);
        perform execution.suppress_erased_members(v_tenant_id, v_list_id, v_imported);
    end if;

    -- Do not keep a new list without members.
    if v_people = 0 then
        delete from execution.lead_lists as list
         where list.tenant_id = v_tenant_id
           and list.id = p_list_id;
        if found then
            v_list_id := null;
        end if;
    end if;
    return query select v_list_id, v_added, v_people - v_added, v_lines - v_people - cardinality(v_ambiguous), v_matched, v_ambiguous;
end
$$;
comment on function execution.import_leads(uuid, uuid, uuid, text, uuid) is
    'Imports the lines of one intake into the tenant and adds the leads to a list, which it creates if '
    'missing. A known lead keeps the values that the file does not mention, and stays suppressed. ambiguous has the '
    'numbers of the lines that were left out because several leads have their address; matched counts the lines whose '
    'lead was recognised by another identity.';
revoke all on function execution.import_leads(uuid, uuid, uuid, text, uuid) from public;
grant execute on function execution.import_leads(uuid, uuid, uuid, text, uuid) to postrider_app;

create or replace function execution.suppress_lead(p_tenant_id uuid, p_lead_id uuid, p_reason text, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update execution.leads
       set suppressed_at = v_now,
           suppression_reason = coalesce(nullif(btrim(p_reason), ''), 'suppressed'),
           updated_at = v_now
     where tenant_id = p_tenant_id
       and id = p_lead_id
       and suppressed_at is null;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        values (p_tenant_id, p_actor, 'lead.suppressed', 'lead:' || p_lead_id, p_reason);
    end if;
    return exists (select from execution.leads where tenant_id = p_tenant_id and id = p_lead_id);
end
$$;
comment on function execution.suppress_lead(uuid, uuid, text, text) is
    'Suppresses a lead of the tenant: no further message is sent to it. Returns false if the lead does not exist. '
    'Repeating the call changes nothing.';
revoke all on function execution.suppress_lead(uuid, uuid, text, text) from public;
grant execute on function execution.suppress_lead(uuid, uuid, text, text) to postrider_app;

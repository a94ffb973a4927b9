-- Whom campaigns address and what they say: leads, lists of them, and immutable versions of content.
-- Safe beside running workers: it adds a schema and touches no other.

create schema execution;
grant usage on schema execution to postrider_app, postrider_worker, postrider_read;

-- `identity` is what an import recognises a lead by: its external id where there is one, otherwise its address.
create table execution.leads (
    id                 uuid        not null,
    tenant_id          uuid        not null,
    workspace_id       uuid        not null,
    identity           text        not null,
    external_id        text,
    email              text,
    phone              text,
    timezone           text,
    attributes         jsonb       not null default '{}',
    suppressed_at      timestamptz,
    suppression_reason text,
    created_at         timestamptz not null default now(),
    updated_at         timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint leads_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint leads_one_per_identity unique (tenant_id, workspace_id, identity),
    constraint leads_identity_is_given check (identity <> '' and octet_length(identity) <= 400),
    constraint leads_addresses_are_short
        check (octet_length(email) <= 320 and octet_length(phone) <= 32 and octet_length(external_id) <= 255
               and octet_length(timezone) <= 64),
    constraint leads_addresses_fit_in_a_header
        check (coalesce(email, '') || coalesce(phone, '') || coalesce(timezone, '') !~ '[[:cntrl:]]'),
    constraint leads_attributes_are_a_small_object
        check (jsonb_typeof(attributes) = 'object' and octet_length(attributes::text) <= 8192),
    constraint leads_suppression_has_a_reason check ((suppressed_at is null) = (suppression_reason is null))
);
select tenancy.protect('execution.leads');

-- For reservations, which ask every time whether somebody has unsubscribed in the meantime.
create index leads_suppressed on execution.leads (tenant_id, id) where suppressed_at is not null;
-- For jobs: somebody who unsubscribed is not addressed as another lead with the same address either. The address comes first,
-- so that neither can be taken for the other.
create index leads_suppressed_by_email on execution.leads (lower(email), tenant_id, workspace_id)
    where suppressed_at is not null;
create index leads_suppressed_by_phone on execution.leads (phone, tenant_id, workspace_id)
    where suppressed_at is not null;

create trigger leads_stay_where_they_are
    before update of id, tenant_id, workspace_id, identity on execution.leads
    for each row
    when (old.id <> new.id or old.tenant_id <> new.tenant_id or old.workspace_id <> new.workspace_id
          or old.identity <> new.identity)
    execute function tenancy.refuse_change('a lead stays who it is');

create table execution.lead_lists (
    id           uuid        not null,
    tenant_id    uuid        not null,
    workspace_id uuid        not null,
    name         text        not null,
    created_at   timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint lead_lists_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint lead_lists_one_per_name unique (tenant_id, workspace_id, name),
    constraint lead_lists_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255)
);
select tenancy.protect('execution.lead_lists');

create table execution.lead_list_members (
    tenant_id uuid not null,
    list_id   uuid not null,
    lead_id   uuid not null,
    primary key (tenant_id, list_id, lead_id),
    constraint lead_list_members_have_a_list
        foreign key (tenant_id, list_id) references execution.lead_lists (tenant_id, id),
    constraint lead_list_members_are_leads
        foreign key (tenant_id, lead_id) references execution.leads (tenant_id, id)
);
select tenancy.protect('execution.lead_list_members');

-- Where COPY puts the lines of an import until merge_leads takes them, in the same transaction. COPY cannot write to a
-- table with row-level security, so this one has no tenant: whoever imports may add lines here and read none, and
-- nobody else ever sees them, because they are gone before the commit.
create unlogged table execution.lead_intake (
    intake             uuid  not null,
    line               bigint not null,
    lead_id            uuid  not null,
    identity           text  not null,
    external_id        text,
    email              text,
    phone              text,
    timezone           text,
    attributes         jsonb not null,
    suppression_reason text
);
create index lead_intake_by_intake on execution.lead_intake (intake);

-- Content in versions that never change: what was sent can always be read again.
create table execution.assets (
    id           uuid        not null,
    tenant_id    uuid        not null,
    workspace_id uuid        not null,
    name         text        not null,
    version      integer     not null,
    channel      text        not null,
    content      jsonb       not null,
    created_at   timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint assets_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint assets_one_per_version unique (tenant_id, workspace_id, name, version),
    constraint assets_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint assets_versions_count_from_one check (version >= 1),
    constraint assets_channel_check check (channel in ('email', 'voice', 'social')),
    constraint assets_content_is_a_small_object
        check (jsonb_typeof(content) = 'object' and octet_length(content::text) <= 1048576)
);
select tenancy.protect('execution.assets');

create trigger assets_never_change
    before update or delete on execution.assets
    for each row
    execute function tenancy.refuse_change('a version of an asset never changes; create the next one');
create trigger assets_are_never_emptied
    before truncate on execution.assets
    for each statement
    execute function tenancy.refuse_change('a version of an asset never changes; create the next one');

-- Takes the lines of one intake into the tenant of the context and puts them on a list, which is made when it is
-- missing. A lead that is known keeps what the file does not mention, and stays suppressed.
create function execution.merge_leads(p_intake uuid, p_workspace_id uuid, p_list text, p_list_id uuid)
returns table (list_id uuid, added bigint, updated bigint, repeated bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_list_id uuid;
    v_lines bigint;
    v_people bigint;
    v_added bigint;
begin
    insert into execution.lead_lists (id, tenant_id, workspace_id, name)
    values (p_list_id, v_tenant_id, p_workspace_id, p_list)
    on conflict (tenant_id, workspace_id, name) do nothing;
    select list.id
      into strict v_list_id
      from execution.lead_lists as list
     where list.tenant_id = v_tenant_id
       and list.workspace_id = p_workspace_id
       and list.name = p_list;

    with lines as (
        delete from execution.lead_intake as intake
         where intake.intake = p_intake
     returning intake.*
    ), people as (
        -- The last line about a person counts, but no line takes back what another says about a suppression; in the
        -- order of identities, so that two imports never wait in a circle.
        select distinct on (lines.identity)
               lines.lead_id, lines.identity, lines.external_id, lines.email, lines.phone, lines.timezone,
               lines.attributes, max(lines.suppression_reason) over (partition by lines.identity) as suppression_reason
          from lines
         order by lines.identity, lines.line desc
    ), merged as (
        insert into execution.leads as lead
               (id, tenant_id, workspace_id, identity, external_id, email, phone, timezone, attributes,
                suppressed_at, suppression_reason)
        select people.lead_id, v_tenant_id, p_workspace_id, people.identity, people.external_id, people.email,
               people.phone, people.timezone, people.attributes,
               case when people.suppression_reason is not null then now() end, people.suppression_reason
          from people
         order by people.identity
            on conflict (tenant_id, workspace_id, identity) do update
           set external_id = coalesce(excluded.external_id, lead.external_id),
               email = coalesce(excluded.email, lead.email),
               phone = coalesce(excluded.phone, lead.phone),
               timezone = coalesce(excluded.timezone, lead.timezone),
               attributes = lead.attributes || excluded.attributes,
               suppressed_at = coalesce(lead.suppressed_at, excluded.suppressed_at),
               suppression_reason = coalesce(lead.suppression_reason, excluded.suppression_reason),
               updated_at = now()
     returning lead.id, lead.xmax = 0 as is_new
    ), members as (
        insert into execution.lead_list_members (tenant_id, list_id, lead_id)
        select v_tenant_id, v_list_id, merged.id
          from merged
            on conflict do nothing
    )
    select (select count(*) from lines),
           count(*),
           count(*) filter (where merged.is_new)
      into v_lines, v_people, v_added
      from merged;
    return query select v_list_id, v_added, v_people - v_added, v_lines - v_people;
end
$$;

-- Nothing more is sent to these people. True for each that exists; doing it twice is the same as once.
create function execution.suppress_lead(p_lead_id uuid, p_reason text, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    update execution.leads
       set suppressed_at = now(),
           suppression_reason = coalesce(nullif(btrim(p_reason), ''), 'suppressed'),
           updated_at = now()
     where tenant_id = v_tenant_id
       and id = p_lead_id
       and suppressed_at is null;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        values (v_tenant_id, p_actor, 'lead.suppressed', 'lead:' || p_lead_id, p_reason);
    end if;
    return exists (select from execution.leads where tenant_id = v_tenant_id and id = p_lead_id);
end
$$;

-- The next version of an asset, or the newest one when it says the same already.
create function execution.create_asset(
    p_id uuid, p_workspace_id uuid, p_name text, p_channel text, p_content jsonb, p_actor text)
returns table (id uuid, version integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_newest record;
begin
    -- One at a time in a workspace, so that versions count without gaps. The lock is on a row that only this tenant
    -- can reach: an advisory lock could be held by anybody who can guess its number.
    perform
       from tenancy.workspaces as workspace
      where workspace.tenant_id = v_tenant_id
        and workspace.id = p_workspace_id
        for no key update;
    select asset.id, asset.version, asset.channel, asset.content
      into v_newest
      from execution.assets as asset
     where asset.tenant_id = v_tenant_id
       and asset.workspace_id = p_workspace_id
       and asset.name = p_name
     order by asset.version desc
     limit 1;
    if v_newest.channel = p_channel and v_newest.content = p_content then
        return query select v_newest.id, v_newest.version;
        return;
    end if;
    insert into execution.assets (id, tenant_id, workspace_id, name, version, channel, content)
    values (p_id, v_tenant_id, p_workspace_id, p_name, coalesce(v_newest.version, 0) + 1, p_channel, p_content);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'asset.created', 'asset:' || p_id, p_name);
    return query select p_id, coalesce(v_newest.version, 0) + 1;
end
$$;

revoke all on all functions in schema execution from public;
grant execute on function
    execution.merge_leads(uuid, uuid, text, uuid),
    execution.suppress_lead(uuid, text, text),
    execution.create_asset(uuid, uuid, text, text, jsonb, text)
    to postrider_app;

grant select on execution.leads, execution.lead_lists, execution.lead_list_members, execution.assets
    to postrider_app, postrider_worker, postrider_read;
grant insert on execution.lead_intake to postrider_app;

-- The audience and the content of campaigns: leads, lists of leads, the staging table of imports, and assets.

create table execution.leads (
    id                 uuid        not null,
    tenant_id          uuid        not null,
    workspace_id       uuid        not null,
    -- An import recognises a lead by its identity: the external id, else the e-mail address, else the phone number.
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
    -- An erasure was asked for at this time: the lead is suppressed and waits for its calls in flight.
    erasing_since      timestamptz,
    -- The person's data was erased at this time; the row stays, because runs intend its id.
    erased_at          timestamptz,
    primary key (tenant_id, id),
    constraint leads_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint leads_identity_is_given check (identity <> '' and octet_length(identity) <= 400),
    constraint leads_addresses_are_short
        check (octet_length(email) <= 320 and octet_length(phone) <= 32 and octet_length(external_id) <= 255
               and octet_length(timezone) <= 64),
    constraint leads_addresses_fit_in_a_header
        check (coalesce(email, '') || coalesce(phone, '') || coalesce(timezone, '') !~ '[[:cntrl:]]'),
    constraint leads_attributes_are_a_small_object
        check (jsonb_typeof(attributes) = 'object' and octet_length(attributes::text) <= 8192),
    constraint leads_suppression_has_a_reason check ((suppressed_at is null) = (suppression_reason is null)),
    constraint leads_being_erased_are_suppressed check (erasing_since is null or suppressed_at is not null),
    constraint leads_erased_have_no_data
        check (erased_at is null
               or (erasing_since is not null and identity = 'erased:' || id::text and suppression_reason = 'erased'
                   and external_id is null and email is null and phone is null and timezone is null
                   and attributes = '{}'))
);
comment on table execution.leads is
    'People whom campaigns address. A lead keeps its id for ever, and its identity until it is erased; a suppressed '
    'lead gets no more messages. An erased lead has no data, and its row never changes again.';

-- Without statistics the planner takes a tenant for a two-hundredth of the table. With them it takes the average tenant, and
-- beside many small tenants any index that starts with tenant_id looks as good as the right one, which for a large tenant
-- reads all its leads.
alter table execution.leads alter column tenant_id set statistics 0;

-- At most one lead per identity. Partial, although every lead has an identity: the foreign key check of list members looks
-- a lead up by (tenant_id, id), and its plan stays in the session. When the table is small, an index that starts with
-- tenant_id costs the planner as much as the primary key; through it every check would later read all leads of the tenant.
-- The planner cannot use a partial index for that check.
create unique index leads_one_per_identity on execution.leads (tenant_id, workspace_id, identity) where identity is not null;
-- For reservations, which check every time whether a lead was suppressed since.
create index leads_suppressed on execution.leads (tenant_id, id) where suppressed_at is not null;
-- For send jobs: a lead is skipped if any lead with the same address is suppressed. The address is the first column, so
-- that the planner cannot mistake one of these indexes for the one above.
create index leads_suppressed_by_email on execution.leads (lower(email), tenant_id, workspace_id)
    where suppressed_at is not null;
create index leads_suppressed_by_phone on execution.leads (phone, tenant_id, workspace_id)
    where suppressed_at is not null;
-- For searches by address. An external id is found by the lead's identity.
create index leads_by_email on execution.leads (tenant_id, email, id) where email is not null;
create index leads_by_phone on execution.leads (tenant_id, phone, id) where phone is not null;
-- For imports, which look up every e-mail address of a file, whatever its case, and every phone number (index above).
create index leads_by_lower_email on execution.leads (tenant_id, lower(email)) where email is not null;
-- For imports: leads that were known by an address before an import named their external id.
create index leads_by_later_external_id on execution.leads (tenant_id, external_id)
    where external_id is not null and identity not like 'id:%';

create table execution.lead_lists (
    id           uuid        not null,
    tenant_id    uuid        not null,
    workspace_id uuid        not null,
    name         text        not null,
    created_at   timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint lead_lists_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint lead_lists_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255)
);
comment on table execution.lead_lists is
    'Named lists of leads. A phase addresses one list.';

alter table execution.lead_lists alter column tenant_id set statistics 0; -- as for leads
-- At most one list per name. Partial for the same reason as leads_one_per_identity.
create unique index lead_lists_one_per_name on execution.lead_lists (tenant_id, workspace_id, name) where name is not null;

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
comment on table execution.lead_list_members is
    'The leads of each list.';

create unlogged table execution.lead_intake (
    intake             uuid   not null,
    line               bigint not null,
    lead_id            uuid   not null,
    identity           text   not null,
    external_id        text,
    email              text,
    phone              text,
    timezone           text,
    attributes         jsonb  not null,
    suppression_reason text
);
comment on table execution.lead_intake is
    'Staging table of imports: COPY adds the lines of a file, and import_leads deletes them in the same transaction, '
    'so no other transaction sees them. COPY cannot write to a table with row-level security, and every table with a '
    'tenant_id has it, so this table has no tenant; the app role may insert and may not read.';

create index lead_intake_by_intake on execution.lead_intake (intake);

create table execution.erasures (
    tenant_id uuid        not null,
    lead_id   uuid        not null,
    at        timestamptz not null default now(),
    actor     text        not null,
    -- Number of items and chat messages from which data was removed.
    items     bigint      not null,
    messages  bigint      not null,
    primary key (tenant_id, lead_id),
    constraint erasures_are_of_a_lead
        foreign key (tenant_id, lead_id) references execution.leads (tenant_id, id),
    constraint erasures_actor_is_named check (btrim(actor) <> '')
);
comment on table execution.erasures is
    'One row per erased lead. The guards of other tables let the transaction that adds the row remove the person''s data, and '
    'no other. The rows never change.';

-- For the guards, which find the transaction by its time.
create index erasures_by_time on execution.erasures (at, tenant_id);

create table execution.suppression_keys (
    tenant_id uuid  not null references tenancy.tenants (id),
    -- The two padded blocks of HMAC-SHA256 under a random key.
    inner_pad bytea not null,
    outer_pad bytea not null,
    primary key (tenant_id),
    constraint suppression_keys_have_the_size_of_sha256
        check (octet_length(inner_pad) = 64 and octet_length(outer_pad) = 64)
);
comment on table execution.suppression_keys is
    'One random HMAC key per tenant, for hashes of suppressed addresses and for links to unsubscribe. Only the owner role reads '
    'this table.';

create table execution.suppressed_addresses (
    tenant_id     uuid        not null,
    workspace_id  uuid        not null,
    hash          bytea       not null,
    suppressed_at timestamptz not null,
    primary key (tenant_id, workspace_id, hash),
    constraint suppressed_addresses_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint suppressed_addresses_are_hashes check (octet_length(hash) = 32)
);
comment on table execution.suppressed_addresses is
    'HMACs of the addresses of erased people who were suppressed: an import suppresses a lead that has one of them. Only '
    'the owner role reads this table.';

create table execution.list_suppressions (
    tenant_id     uuid        not null,
    list_id       uuid        not null,
    lead_id       uuid        not null,
    suppressed_at timestamptz not null default now(),
    reason        text        not null,
    primary key (tenant_id, list_id, lead_id),
    constraint list_suppressions_are_of_a_list
        foreign key (tenant_id, list_id) references execution.lead_lists (tenant_id, id),
    constraint list_suppressions_are_of_a_lead
        foreign key (tenant_id, lead_id) references execution.leads (tenant_id, id),
    constraint list_suppressions_have_a_reason check (btrim(reason) <> '' and octet_length(reason) <= 255)
);
comment on table execution.list_suppressions is
    'Leads that get no more messages of campaigns over a list, whether they are members of it or not. A suppression of the lead '
    'itself (leads.suppressed_at) is for all lists.';

create table execution.suppressed_list_addresses (
    tenant_id     uuid        not null,
    list_id       uuid        not null,
    hash          bytea       not null,
    suppressed_at timestamptz not null,
    primary key (tenant_id, list_id, hash),
    constraint suppressed_list_addresses_belong_to_a_list
        foreign key (tenant_id, list_id) references execution.lead_lists (tenant_id, id),
    constraint suppressed_list_addresses_are_hashes check (octet_length(hash) = 32)
);
comment on table execution.suppressed_list_addresses is
    'HMACs of the addresses of erased people who were suppressed for a list, as suppressed_addresses. Only the owner role reads '
    'this table.';

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
alter table execution.assets alter column tenant_id set statistics 0; -- as for leads
comment on table execution.assets is
    'Content in versions that never change, so that the content of every message can be read again.';

-- For the list of assets, newest first, page by page.
create index assets_by_age on execution.assets (tenant_id, created_at, id);

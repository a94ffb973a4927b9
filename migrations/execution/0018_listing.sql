-- Lists that are read page by page, each in the order of an index: a page costs what is on it, however much there is.
-- Safe beside running workers: it adds indexes. While they are built, imports and new campaigns wait, and nothing that sends does.

-- For people who look for somebody. An external id is found by the lead's identity.
create index leads_by_email on execution.leads (tenant_id, email, id) where email is not null;
create index leads_by_phone on execution.leads (tenant_id, phone, id) where phone is not null;

-- Newest first.
create index assets_by_age on execution.assets (tenant_id, created_at, id);
create index campaigns_by_age on execution.campaigns (tenant_id, created_at, id);
create index campaign_runs_by_age on execution.campaign_runs (tenant_id, created_at, id);

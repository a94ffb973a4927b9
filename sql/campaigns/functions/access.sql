-- Row-level security and the table rights of the campaigns area. Only definer functions change these tables; the roles
-- read them. Apply this file after the tables and after tenancy's functions.

grant usage on schema execution to postrider_app, postrider_worker, postrider_read, postrider_publish;

-- A table that is protected already keeps its policies. lead_intake has no tenant (see its comment).
select tenancy.protect(tenant_table.name)
  from unnest(array[
           'execution.leads',
           'execution.lead_lists',
           'execution.lead_list_members',
           'execution.erasures',
           'execution.suppression_keys',
           'execution.suppressed_addresses',
           'execution.assets',
           'execution.campaigns',
           'execution.campaign_phases',
           'execution.campaign_runs',
           'execution.messages',
           'execution.run_archives',
           'execution.job_queue',
           'execution.claim_order',
           'execution.channel_outbox',
           'execution.doubts',
           'execution.provider_callbacks',
           'execution.account_states',
           'execution.campaign_audit_log',
           'execution.campaign_events'
       ]::regclass[]) as tenant_table (name)
 where not exists (select
                     from pg_catalog.pg_policy as policy
                    where policy.polrelid = tenant_table.name
                      and policy.polname = 'owner_passes');

-- execution.claim_order, suppression_keys and suppressed_addresses are for the owner's functions alone.
grant select on
    execution.leads,
    execution.lead_lists,
    execution.lead_list_members,
    execution.erasures,
    execution.assets,
    execution.campaigns,
    execution.campaign_phases,
    execution.campaign_runs,
    execution.messages,
    execution.run_archives,
    execution.job_queue,
    execution.channel_outbox,
    execution.doubts,
    execution.provider_callbacks,
    execution.account_states,
    execution.campaign_audit_log,
    execution.campaign_events
    to postrider_app, postrider_worker, postrider_read;
grant insert on execution.lead_intake to postrider_app;

-- Counts and samples of the audience of a phase that is not deployed yet, for the preflight check.

-- A lead that another lead of the list precedes with the same address is left out, as create_run does. The others are
-- classified as read_audience and the worker do it.
create or replace function execution.count_audience(p_tenant_id uuid, p_list_id uuid, p_channel text, p_limit integer)
returns table (members bigint, counted bigint, reachable bigint, suppressed bigint, without_address bigint, same_address bigint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        with counted as (
            select lead.id, lead.workspace_id, lead.suppressed_at,
                   case p_channel when 'email' then lower(lead.email) when 'voice' then lead.phone end as address
              from (select member.lead_id
                      from execution.lead_list_members as member
                     where member.tenant_id = p_tenant_id
                       and member.list_id = p_list_id
                     order by member.lead_id
                     limit p_limit) as member
                   join execution.leads as lead on lead.tenant_id = p_tenant_id and lead.id = member.lead_id
        ), placed as (
            select counted.*, row_number() over (partition by counted.address order by counted.id) as place
              from counted
        ), classified as (
            select case
                       when placed.address is not null and placed.place > 1 then 'same_address'
                       when placed.suppressed_at is not null
                            or p_channel = 'email'
                               and exists (select
                                             from execution.leads as other
                                            where other.tenant_id = p_tenant_id
                                              and other.workspace_id = placed.workspace_id
                                              and lower(other.email) = placed.address
                                              and other.suppressed_at is not null)
                            or p_channel = 'voice'
                               and exists (select
                                             from execution.leads as other
                                            where other.tenant_id = p_tenant_id
                                              and other.workspace_id = placed.workspace_id
                                              and other.phone = placed.address
                                              and other.suppressed_at is not null)
                           then 'suppressed'
                       when placed.address is null and p_channel <> 'social' then 'without_address'
                       else 'reachable'
                   end as class
              from placed
        )
        select (select count(*)
                  from execution.lead_list_members as member
                 where member.tenant_id = p_tenant_id
                   and member.list_id = p_list_id),
               count(*),
               count(*) filter (where classified.class = 'reachable'),
               count(*) filter (where classified.class = 'suppressed'),
               count(*) filter (where classified.class = 'without_address'),
               count(*) filter (where classified.class = 'same_address')
          from classified;
end
$$;
comment on function execution.count_audience(uuid, uuid, text, integer) is
    'Counts the members of a list of the tenant, and of the first p_limit of them those that a phase on this channel would '
    'reach, and the reasons for the others.';
revoke all on function execution.count_audience(uuid, uuid, text, integer) from public;
grant execute on function execution.count_audience(uuid, uuid, text, integer) to postrider_app;

create or replace function execution.sample_audience(
    p_tenant_id uuid, p_list_id uuid, p_channel text, p_limit integer, p_step integer)
returns table (lead_id uuid, external_id text, email text, phone text, timezone text, attributes jsonb)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select lead.id, lead.external_id, lead.email, lead.phone, lead.timezone, lead.attributes
          from (select member.lead_id, row_number() over (order by member.lead_id) as place
                  from execution.lead_list_members as member
                 where member.tenant_id = p_tenant_id
                   and member.list_id = p_list_id
                 order by member.lead_id
                 limit p_limit) as member
               join execution.leads as lead on lead.tenant_id = p_tenant_id and lead.id = member.lead_id
         where (member.place - 1) % p_step = 0
           and lead.suppressed_at is null
           and case p_channel when 'email' then lead.email is not null when 'voice' then lead.phone is not null else true end;
end
$$;
comment on function execution.sample_audience(uuid, uuid, text, integer, integer) is
    'Returns every p_step-th of the first p_limit members of a list of the tenant, without those that are suppressed or have '
    'no address on this channel.';
revoke all on function execution.sample_audience(uuid, uuid, text, integer, integer) from public;
grant execute on function execution.sample_audience(uuid, uuid, text, integer, integer) to postrider_app;

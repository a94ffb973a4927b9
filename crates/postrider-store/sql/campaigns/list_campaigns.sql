-- A page of campaigns with their phases. The aggregate over the phases of one campaign keeps the planner from reading the phases of all.
select campaign.id,
       campaign.workspace_id,
       campaign.name,
       campaign.auto_advance,
       campaign.created_at as "created_at: jiff_sqlx::Timestamp",
       phases.names as "phases!",
       phases.kinds as "kinds!",
       phases.channels as "channels!: Vec<Option<String>>",
       phases.statuses as "statuses!",
       phases.progress as "progress!"
  from execution.campaigns as campaign
       cross join lateral (
           select array_agg(phase.phase order by phase.position) as names,
                  array_agg(phase.kind order by phase.position) as kinds,
                  array_agg(phase.channel order by phase.position) as channels,
                  array_agg(phase.status order by phase.position) as statuses,
                  array_agg(coalesce(phase.progress_reported, phase.progress)::double precision order by phase.position)
                      as progress
             from execution.campaign_phases as phase
            where phase.tenant_id = campaign.tenant_id
              and phase.campaign_id = campaign.id) as phases
 where campaign.tenant_id = $1
   and ($3::timestamptz is null or (campaign.created_at, campaign.id) < ($3, $4::uuid))
   and ($5::text is null or strpos(lower(campaign.name), lower($5)) > 0)
   and ($6::text[] is null or phases.statuses && $6)
 order by campaign.created_at desc, campaign.id desc
 limit $2

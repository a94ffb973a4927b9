-- A page of the leads on lists, newest first. Each list brings its next leads in order, so that none is read to its end.
select lead.id as "id!",
       lead.workspace_id as "workspace_id!",
       lead.external_id,
       lead.email,
       lead.phone,
       lead.timezone,
       lead.attributes as "attributes!: Json<Box<RawValue>>",
       lead.suppressed_at as "suppressed_at: jiff_sqlx::Timestamp",
       lead.suppression_reason,
       lead.created_at as "created_at!: jiff_sqlx::Timestamp",
       lead.updated_at as "updated_at!: jiff_sqlx::Timestamp",
       lead.erased_at as "erased_at: jiff_sqlx::Timestamp"
  from unnest($7::uuid[]) as list (id)
       cross join lateral (
           select lead.*
             from execution.lead_list_members as member
                  join execution.leads as lead on lead.tenant_id = member.tenant_id and lead.id = member.lead_id
            where member.tenant_id = $1
              and member.list_id = list.id
              -- Said of both, so that whichever is read first begins in the right place.
              and ($2::uuid is null or member.lead_id < $2 and lead.id < $2)
              and ($3::boolean is null or (lead.suppressed_at is not null) = $3)
              and ($4::text is null or lead.email = $4)
              and ($5::text is null or lead.phone = $5)
              and ($6::text is null or lead.identity = $6)
              and ($9::uuid[] is null or lead.id = any ($9))
              and ($10 or lead.erased_at is null)
            order by member.lead_id desc
            limit $8) as lead
 order by lead.id desc
 limit $8

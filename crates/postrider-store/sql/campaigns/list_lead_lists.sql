-- Lists of leads, newest first. The members of a list are counted up to 10,000.
select list.id,
       list.workspace_id,
       list.name,
       list.created_at as "created_at: jiff_sqlx::Timestamp",
       counted.members as "members!"
  from (select list.id, list.tenant_id, list.workspace_id, list.name, list.created_at
          from execution.lead_lists as list
         where list.tenant_id = $1
           and ($2::text is null or strpos(lower(list.name), lower($2)) > 0)
           and ($3::uuid is null or list.id < $3)
         order by list.id desc
         limit $4) as list
       cross join lateral (
           select count(*) as members
             from (select
                     from execution.lead_list_members as member
                    where member.tenant_id = $1
                      and member.list_id = list.id
                    limit 10000) as member) as counted
 order by list.id desc

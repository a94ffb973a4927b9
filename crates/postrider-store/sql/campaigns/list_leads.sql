-- A page of leads, newest first: ids are ordered by time. Each filter precedes the id in an index.
select id,
       workspace_id,
       external_id,
       email,
       phone,
       timezone,
       attributes as "attributes: Json<Box<RawValue>>",
       suppressed_at as "suppressed_at: jiff_sqlx::Timestamp",
       suppression_reason,
       created_at as "created_at: jiff_sqlx::Timestamp",
       updated_at as "updated_at: jiff_sqlx::Timestamp",
       erased_at as "erased_at: jiff_sqlx::Timestamp"
  from execution.leads
 where tenant_id = $1
   and ($2::uuid is null or id < $2)
   and ($3::boolean is null or (suppressed_at is not null) = $3)
   and ($4::text is null or email = $4)
   and ($5::text is null or phone = $5)
   and ($6::text is null or identity = $6)
   and workspace_id = any ($7)
   and ($9::uuid[] is null or id = any ($9))
   and ($10 or erased_at is null)
 order by id desc
 limit $8

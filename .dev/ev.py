import sys,duckdb
r=sys.argv[1]
c=duckdb.connect()
for t in ("host_op","host_api","gpu_op","annotation","step"):
    try: print(t, c.sql(f"select count(*) from '{r}/{t}/*.parquet'").fetchone(), [x[0] for x in c.sql(f"describe select * from '{r}/{t}/*.parquet'").fetchall()])
    except Exception as e: print(t, str(e)[:100])

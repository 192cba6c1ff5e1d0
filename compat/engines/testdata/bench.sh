#!/bin/bash
# What cleat bench measures with both ends in containers of Apptainer, and what
# that leaves: bench.sh
set -u
export PATH=/run/cleat:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
cd /tmp
find / -xdev -path /proc -prune -o -print 2>/dev/null | sort >/tmp/before
cleat bench quick --only 'network=loopback|veth,work=tcp' --runtime native,apptainer --repeat 1 --duration 50ms --quiet --out /tmp/out >/tmp/said 2>&1
echo "bench: $?"
for network in loopback veth; do
	for runtime in native apptainer; do
		echo "$network in $runtime: $(grep "\"network\":\"$network\",\"runtime\":\"$runtime\"" /tmp/out/samples.jsonl | grep -c '"values":{"throughput"')"
	done
done
grep -o '"absent":"[^"]*"' /tmp/out/samples.jsonl | sort -u | sed 's/^/absent: /'
find / -xdev -path /proc -prune -o -path /tmp -prune -o -print 2>/dev/null | sort >/run/after
grep -v '^/tmp' /tmp/before | diff - /run/after | grep '^>' | grep -v ' /run/after$' | sed 's/^> /left: /'
ls -d /sys/fs/cgroup/cleat-bench.* 2>/dev/null | sed 's/^/left: /'
exit 0

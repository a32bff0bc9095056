// SPDX-License-Identifier: Apache-2.0

package convert

// unsupported returns why a plugin is not supported, and what to do instead.
func unsupported(plugin string) (why, hint string) {
	const (
		zoneWhy  = "node-cache serves no zones of its own"
		zoneHint = "write a route for the zone to a name server: {zone: …, to: […]}"
		listen   = "only UDP and TCP are supported for clients"
	)
	switch plugin {
	case "acl":
		return "answers do not depend on the client's address", "restrict clients with a NetworkPolicy or the node's firewall"
	case "autopath":
		return "search lists are not expanded on the server", "denials are kept and quick, also below a denied name; a dot at the end of a name, or a lower ndots, saves the walk"
	case "file", "auto":
		return zoneWhy, "list its addresses in hosts.names if they are few; else " + zoneHint
	case "secondary", "sign", "dnssec":
		return zoneWhy, zoneHint
	case "etcd", "route53", "azure", "clouddns", "nomad", "k8s_external":
		return zoneWhy + ", and does not read those of this service", "write a route for the zone to the server that has it"
	case "consul", "docker", "k8s_gateway", "mdns", "mysql", "netbox", "pdsql", "records", "redis", "sqlite", "tailscale", "traefik":
		return zoneWhy + ", and does not read those of this plugin", "write a route for the zone to a CoreDNS with the plugin"
	case "recursor", "unbound":
		return "node-cache is not a recursive resolver", `write a route to such a server: {zone: ".", to: […]}`
	case "ads", "blocker", "blocklist":
		return "lists of names to block are not fetched", "templates deny zones, and hosts.files has names; or write a route to a server that blocks"
	case "fanout", "alternate", "kubernetai":
		return "the plugin is not one of CoreDNS itself, and its lines are not read", "write forward, or kubernetes, in its place, and convert again"
	case "ocp_dnsnameresolver":
		return "address lookups are not published", "leave the names that an EgressFirewall has to the central resolver, and write a route for them"
	case "rrl":
		return "responses are not rate-limited by content", "limits.perClient bounds the in-flight queries of a client"
	case "multicluster":
		return "names of a cluster set are not supported", "write a route for the zone to the central resolver"
	case "federation":
		return "federation is not supported", "Kubernetes has dropped them"
	case "tls", "https", "https3", "quic", "grpc_server":
		return listen, "upstreams may be asked over TLS and HTTPS: see forward[].to"
	case "grpc":
		return "gRPC upstreams are not supported", "use the same server over tcp:// or tls://"
	case "nsid":
		return "NSID is not supported", "identity.hostname answers queries for hostname.bind in class CH"
	case "minimal":
		return "authority and additional records are passed on unchanged", "they cost no lookup; cached answers hold them once"
	case "header":
		return "the flags of an answer are what the protocol asks for", ""
	case "view":
		return "answers do not depend on the client", "run another agent for clients with other answers"
	case "geoip":
		return "answers do not depend on the client's location", ""
	case "erratic", "whoami":
		return "a plugin for tests", "templates make answers by pattern"
	case "trace":
		return "queries are not traced", "metrics have latencies by source; node-cache query --explain explains one query"
	case "dnstap":
		return "dnstap is not supported", "log.queries logs them: all, a sample, the slow or those that fail"
	case "pprof":
		return "profiles over HTTP are not supported", "/status has counts and sizes of all parts"
	case "shed", "proxyproto", "multisocket":
		return "socket options cannot be set", "what goes beyond the limits is shed, and counted: see limits"
	case "tsig":
		return "queries and transfers are not signed", ""
	case "on":
		return "programs are not run", ""
	}
	return "unknown plugin", "check docs/configuration.md for a matching key"
}

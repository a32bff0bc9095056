// SPDX-License-Identifier: Apache-2.0

package convert

// none says why a plugin has no counterpart, and what to do instead.
func unsupported(plugin string) (why, hint string) {
	const (
		zoneWhy  = "node-cache holds no zones of its own"
		zoneHint = "leave the zone to a name server, and write a route for it: {zone: …, to: […]}"
		listen   = "clients are served over UDP and TCP alone"
	)
	switch plugin {
	case "acl":
		return "clients are not told apart by address", "let a NetworkPolicy or the node's firewall say who may ask"
	case "autopath":
		return "the search list of a pod is not walked for it", "denials are kept and quick, also below a denied name; a dot at the end of a name, or a lower ndots, saves the walk"
	case "file", "auto":
		return zoneWhy, "list its addresses in hosts.names if they are few; else " + zoneHint
	case "secondary", "sign", "dnssec":
		return zoneWhy, zoneHint
	case "etcd", "route53", "azure", "clouddns", "nomad", "k8s_external":
		return zoneWhy + ", and does not read those of this service", "leave the zone to the server that has it, and write a route for it"
	case "consul", "docker", "k8s_gateway", "mdns", "mysql", "netbox", "pdsql", "records", "redis", "sqlite", "tailscale", "traefik":
		return zoneWhy + ", and does not read those of this plugin", "leave the zone to a CoreDNS with the plugin, and write a route for it"
	case "recursor", "unbound":
		return "names are not looked for from the root on: others are asked who do that", `write a route to such a server: {zone: ".", to: […]}`
	case "ads", "blocker", "blocklist":
		return "lists of names to block are not fetched", "templates deny zones, and hosts.files has names; or write a route to a server that blocks"
	case "fanout", "alternate", "kubernetai":
		return "the plugin is not one of CoreDNS itself, and its lines are not read", "write forward, or kubernetes, in its place, and convert again"
	case "ocp_dnsnameresolver":
		return "nobody is told of the addresses of names", "leave the names that an EgressFirewall has to the central resolver, and write a route for them"
	case "rrl":
		return "replies are not bounded by what they say", "limits.perClient bounds what a client may have under way"
	case "multicluster":
		return "names of a cluster set are not made up", "leave the zone to the central resolver, and write a route for it"
	case "federation":
		return "names of federated services are not made up", "Kubernetes has dropped them"
	case "tls", "https", "https3", "quic", "grpc_server":
		return listen, "upstreams may be asked over TLS and HTTPS: see forward[].to"
	case "grpc":
		return "upstreams are not asked over gRPC", "ask the same server over tcp:// or tls://"
	case "nsid":
		return "the option NSID is not answered", "identity.hostname is told to those who ask for hostname.bind in class CH"
	case "minimal":
		return "authority and additional records are given as the upstream gives them", "they cost no lookup; cached answers hold them once"
	case "header":
		return "the flags of an answer are what the protocol asks for", ""
	case "view":
		return "clients are not told apart", "run another agent for those that are to get other answers"
	case "geoip":
		return "clients are not told apart by where they are", ""
	case "erratic", "whoami":
		return "a plugin for tests", "templates make answers by pattern"
	case "trace":
		return "queries are not traced", "metrics have the time by source; node-cache query --explain tells what is done with one name"
	case "dnstap":
		return "there is no dnstap", "log.queries logs them: all, a sample, the slow or those that fail"
	case "pprof":
		return "there is no profile to be had over HTTP", "/status has counts and sizes of all parts"
	case "shed", "proxyproto", "multisocket":
		return "how sockets are read is not to be set", "what goes beyond the limits is shed, and counted: see limits"
	case "tsig":
		return "queries and transfers are not signed", ""
	case "on":
		return "no programs are run", ""
	}
	return "no plugin that is known here", "see whether docs/configuration.md has a key for what it does"
}

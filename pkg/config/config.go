// SPDX-License-Identifier: Apache-2.0

package config

import (
	"log/slog"
	"net/netip"
	"time"
)

// The doc comment of each field is what users read: reference.yaml, docs/configuration.md and the JSON Schema are made
// of them by TestReference. What a comment at the end of a line says is for users of this package. decode.go has the
// tags.

const (
	apiVersion = "node-cache.io/v1alpha1"
	kind       = "Config"
)

// document is a configuration file.
type document struct {
	// The version of this format.
	APIVersion string `yaml:"apiVersion" words:"node-cache.io/v1alpha1"`
	// Always Config.
	Kind string `yaml:"kind" words:"Config"`

	Config
}

// Config is the configuration of one agent or resolver. [Default] has the value of every absent key.
type Config struct {
	// The addresses that answer DNS queries.
	Listen Listen `yaml:"listen"`
	// The upstreams of each zone. A name goes to the route with the longest matching zone. A route for the zone `.` is
	// required, unless cluster.zones has it.
	Forward []Route `yaml:"forward"` // zones are unique
	// The domain of the cluster. Not the root.
	ClusterDomain string `yaml:"clusterDomain" format:"domain"` // lower-case and absolute
	// How names and reverse names of the cluster are answered.
	Cluster Cluster `yaml:"cluster"`
	// How the agent knows the pods that ask it. For `node-cache agent` only.
	Pods NodePods `yaml:"pods"`
	// Names with fixed addresses, before the cluster, the cache and the upstreams.
	Hosts Hosts `yaml:"hosts"`
	// SkyDNS records in etcd, after hosts and templates, and before the cluster.
	Etcd Etcd `yaml:"etcd"`
	// Rules that look a name up under another name. The first matching rule applies, once; the reply has the client's
	// name. An alias in an answer keeps its target: write a rule for the alias too.
	Rewrite []Rewrite `yaml:"rewrite"`
	// Answers built from patterns. The first matching template answers, after hosts and before the cluster.
	Templates []Template `yaml:"templates"`
	// Lists of names that are not looked up, for all clients. Names of the cluster are never blocked.
	Block Block `yaml:"block"`
	// Names that no upstream is asked for, with those below them: `localhost` has the loopback addresses (RFC 6761),
	// `invalid` and `onion` do not exist (RFC 6761, RFC 7686), and `resolver.arpa` is empty (RFC 9462). A route, hosts and
	// templates for such a name come first. `[]`: all are looked up.
	SpecialNames []string `yaml:"specialNames" words:"localhost,invalid,onion,resolver.arpa"`
	// IPv6 addresses synthesized for names that only have IPv4 addresses, for clients behind a NAT64 (RFC 6147).
	// `ipv4only.arpa` is answered here (RFC 7050).
	DNS64 DNS64 `yaml:"dns64"`
	// The link that holds listen.addresses. For `node-cache agent` only.
	Interface Interface `yaml:"interface"`
	// The kernel rules that send the node's queries to the agent while it answers, else to the fallback. For `node-cache
	// agent` only.
	Intercept Intercept `yaml:"intercept"`
	// The agents release their leases and keep the rules, so that the fallback answers the pods: for an incident. It needs
	// intercept.manage, and a fallback unless the data plane serves the Service. An agent that knows no endpoint of the
	// fallback answers on.
	Standby bool `yaml:"standby"`
	// Names that must have an address, at most 16, asked of the routes and records of this configuration, without cache and
	// fallback (docs/staged.md). While one has none, a new agent takes neither the sockets of the old one nor, at a start with a
	// configuration that has not served yet, the queries of the node. A change of a running agent that breaks one is refused.
	RequiredNames []string `yaml:"requiredNames" format:"name"` // lower-case and absolute
	// Answers that a BPF program gives to the node's pods. For `node-cache agent` only.
	Kernel Kernel `yaml:"kernel"`
	// Which clients learn of changes of the cluster's names while they hold them (docs/push.md), with cluster.resolver `local`.
	Push Push `yaml:"push"`
	// The cache.
	Cache Cache `yaml:"cache"`
	// A copy of the cache, and with cluster.resolver `local` of the zone, for the next start.
	Snapshot Snapshot `yaml:"snapshot"`
	// How an agent takes over from the previous one without losing a query. For `node-cache agent` only.
	Handover Handover `yaml:"handover"`
	// Bounds on concurrent work. Excess queries are shed.
	Limits Limits `yaml:"limits"`
	// The answers to queries of class CH. Empty: the query is refused.
	Identity Identity `yaml:"identity"`
	// The HTTP server for /metrics, /livez, /readyz, /status, and the web page /.
	Admin Admin `yaml:"admin"`
	// Queries that are repeated to measure the answers, at most 32. Each has metrics, and the page /healthcheck/LABEL.
	Probes []Probe `yaml:"probes" max:"32"`
	// What is logged.
	Log Log `yaml:"log"`
}

// Route is an item of forward. [DefaultRoute] has the value of every absent key.
type Route struct {
	// The zone, with every name below it. Required.
	Zone string `yaml:"zone" format:"zone" required:"write \".\" for all names"` // lower-case and absolute
	// Upstreams. `192.0.2.1`, `192.0.2.1:5353` or `udp://192.0.2.1`: over UDP, and over TCP after a truncated answer.
	// `tcp://192.0.2.1`: over TCP only. `tls://192.0.2.1#dns.example`: over TLS (RFC 7858); the certificate must have the
	// name after the #, or without one the address. `https://192.0.2.1/path#dns.example`, or `https://dns.example/path` at
	// the addresses in bootstrap: over HTTP/2 (RFC 8484); the default path is `/dns-query`. `/etc/resolv.conf`: the
	// nameservers of that file. `none` alone: queries fail. The default port is 53, for tls:// 853, for https:// 443. An
	// IPv6 address with a port has brackets.
	To []Target `yaml:"to" format:"target" required:"name at least one upstream"`
	// The IP addresses of the host in an https:// URL, each an upstream. A route may have one such URL.
	Bootstrap []netip.Addr `yaml:"bootstrap" format:"bootstrap"` // empty without such a host
	// The order of upstreams: `fastest`, `sequential` (the first healthy one of the list) or `random`. If the first is
	// late or fails, another is asked.
	Policy string `yaml:"policy" words:"fastest,sequential,random"`
	// Connections to each upstream over TCP, TLS and HTTPS.
	Connections int `yaml:"connections" min:"1" max:"16"`
	// The most queries a second to each upstream; 0: no bound. Excess goes to other upstreams, or fails.
	Rate int `yaml:"rate" min:"0" max:"1000000"`
	// `on`: names are sent over UDP in random case (0x20), against forged answers (docs/upstreams.md). `off`: in lower
	// case.
	RandomCase bool `yaml:"case" words:"off,on"`
	// `on`: clients get the flag AD (validated, RFC 4035) also from upstreams over UDP and TCP, which must validate, on a
	// network without forged packets. `off`: only over TLS and HTTPS.
	TrustAD bool `yaml:"trustAD" words:"off,on"`
	// The certificates of upstreams over TLS and HTTPS.
	RouteTLS `yaml:"tls"`
	// The requests to upstreams over HTTPS.
	RouteHTTPS `yaml:"https"`
	// `on`: while all upstreams of the route are down, the servers of intercept.fallback are asked over TCP. `off`, or
	// with TLS or HTTPS: the queries fail.
	NoFallback bool `yaml:"fallback" words:"on,off"`
	// `remove` or `pass`: the client-subnet option of queries (RFC 7871).
	ClientSubnet bool `yaml:"clientSubnet" words:"remove,pass"`
	// cache.minTTL for this route.
	MinTTL time.Duration `yaml:"minTTL" format:"ttl" min:"0s" max:"1h" inherits:"cache.minTTL"`
	// cache.maxTTL for this route.
	MaxTTL time.Duration `yaml:"maxTTL" format:"ttl" min:"1s" max:"168h" inherits:"cache.maxTTL"`
	// cache.negativeTTL for this route.
	NegativeTTL time.Duration `yaml:"negativeTTL" format:"ttl" min:"1s" max:"24h" inherits:"cache.negativeTTL"`
	// `off`: only failures are cached, for cache.failureTTL.
	NoCache bool `yaml:"cache" words:"on,off"`
}

// HasUpstream reports whether queries are sent anywhere.
func (r Route) HasUpstream() bool { return r.To[0].Kind != None }

// Upstreams returns the upstreams of r. An HTTPS target with a host name becomes one target for each address of Bootstrap. The
// target none is left out.
func (r Route) Upstreams() []Target {
	var list []Target
	for _, t := range r.To {
		if t.Kind == None {
			continue
		}
		if t.Kind != HTTPS || t.Addr.Addr().IsValid() {
			list = append(list, t)
			continue
		}
		for _, a := range r.Bootstrap {
			named := t
			named.Addr = netip.AddrPortFrom(a, t.Addr.Port())
			list = append(list, named)
		}
	}
	return list
}

// RouteTLS is the section tls of a route.
type RouteTLS struct {
	// A file of CA certificates (PEM). Empty: the system's.
	CA string `yaml:"ca" format:"path"` // absolute unless Parse has read a relative path
}

// RouteHTTPS is the section https of a route.
type RouteHTTPS struct {
	// `post`, or `get` (if a proxy on the path may cache answers).
	Method string `yaml:"method" words:"post,get"`
}

// Cluster is the section cluster.
type Cluster struct {
	// `none`: cluster names are forwarded like others. `local`: this process answers them from its watch of the API.
	// `central`: the resolver in cluster.central does. With `local` and `central` the domain must have no route; a name
	// below it may.
	Resolver string `yaml:"resolver" words:"none,local,central"`
	// A kubeconfig file, read once; files that it names are watched. Empty: the service account of the pod.
	Kubeconfig string `yaml:"kubeconfig" format:"path"` // absolute unless Parse has read a relative path
	// The context in the kubeconfig. Empty: its current context.
	Context string `yaml:"context" format:"text"`
	// A folder of YAML objects, instead of an API server.
	Manifests string `yaml:"manifests" format:"path"` // likewise
	// The resolver that is asked over TCP: with `local` for names that this node cannot know, with `central` for all
	// cluster names.
	Central Central `yaml:"central"`
	// Other zones that the central resolver answers, such as those of CoreDNS's other server blocks. They have no route.
	// `.`, with `forward: []`: all names, so that the agent is a cache only.
	Zones []string `yaml:"zones" format:"zone"` // lower-case and absolute
	// The domain of multi-cluster names (ServiceImports), such as `clusterset.local`, with `local`. Empty: none.
	ClusterSet string `yaml:"clusterSet" format:"clusterSet"` // lower-case and absolute
	// Other domains with the names of clusterDomain, such as `corp.k8s`. Reverse names give those in clusterDomain.
	Domains []string `yaml:"domains" format:"domain"` // lower-case and absolute
	// Zones within the domains, such as `cluster.local`, whose unknown names are looked up by their route instead of
	// denied, with `local`.
	Fallthrough []string `yaml:"fallthrough" format:"zone"` // lower-case and absolute
	// `true`: a change of a Service drops its cached answers and denials, with `central`. Needs a watch of Services.
	Invalidate bool `yaml:"invalidate"`
	// The endpoints in the zone: those of `headless` Services, `all` or `none`.
	Endpoints string `yaml:"endpoints" words:"headless,all,none"`
	// The name of an endpoint without a hostname: its `address` or its `pod`.
	PodNames bool `yaml:"endpointNames" words:"address,pod"`
	// Names of pods by address, such as `10-0-0-1.shop.pod.cluster.local`: `disabled` (none exist), `insecure` (all exist)
	// or `verified` (those of existing pods).
	Pods string `yaml:"pods" words:"disabled,insecure,verified"`
	// The namespaces that are served. Empty: all.
	Namespaces []string `yaml:"namespaces" format:"namespace"`
	// A label selector for Services, such as `app=web, tier!=cache`. Empty: all.
	ServiceSelector string `yaml:"serviceSelector" format:"selector"`
	// A label selector for namespaces, instead of namespaces. Empty: all.
	NamespaceSelector string `yaml:"namespaceSelector" format:"selector"`
	// `true`: Services without a ready endpoint have no name. Needs endpoints: all.
	IgnoreEmptyService bool `yaml:"ignoreEmptyService"`
	// The TTL of cluster answers.
	TTL time.Duration `yaml:"ttl" format:"ttl" min:"0s" max:"1h"`
	// A zone that was not confirmed fresh for this time is old: a central resolver is asked for names that it lacks.
	StaleAfter time.Duration `yaml:"staleAfter" min:"5s" max:"1h"`
	// The prefixes of Services and pods, such as `10.96.0.0/12`. With `local` reverse names of unknown addresses in them
	// are denied; with `central` the central resolver gets them. Empty: with `local` no address is denied, with `central`
	// all reverse names without a route go there.
	Ranges []netip.Prefix `yaml:"ranges" format:"prefix"`
	// The topology zone of this node, whose endpoints come first in headless answers and among those of central.service.
	// `auto`: the variable NODE_ZONE, else the zone of the Node NODE_NAME. Empty: no preference.
	NodeZone string `yaml:"nodeZone" format:"topologyZone"`
	// Federations as kube-dns has them, such as `myfed=example.com` (docs/cluster.md). Needs resolver `local` and
	// endpoints `all`.
	Federations []Federation `yaml:"federations" format:"federation"`
	// Addresses and prefixes of clients that may transfer the zones, with `local`. An address, such as `192.0.2.53` or
	// `192.0.2.54:5353`, is a secondary server and gets NOTIFY (docs/cluster.md).
	TransferTo []TransferClient `yaml:"transferTo" format:"client"`
	// A file of keys, as `tsig-keygen` writes it. Transfers must be signed with one of them (TSIG). Empty: no signatures.
	TransferKeys string `yaml:"transferKeys" format:"path"` // absolute unless Parse has read a relative path
	// Names of Services by their external addresses, with `local`.
	External External `yaml:"external"`
}

// External is the section cluster.external.
type External struct {
	// Zones with the names of these Services (docs/external-names.md). Empty: off.
	Zones []string `yaml:"zones" format:"domain"` // lower-case and absolute
	// The TTL of the answers.
	TTL time.Duration `yaml:"ttl" format:"ttl" min:"0s" max:"1h"`
	// `true`: also headless Services without external addresses, and their endpoints.
	Headless bool `yaml:"headless"`
	// `true`: names that do not exist are looked up by their route.
	Fallthrough bool `yaml:"fallthrough"`
}

// Central is the section cluster.central.
type Central struct {
	// The Service (namespace/name) whose ready endpoints are asked.
	Service ServiceName `yaml:"service" format:"service"`
	// Servers, instead of service.
	Addresses []netip.AddrPort `yaml:"addresses" format:"server"`
	// A headless Service (namespace/name) with the pods of a `node-cache resolver` (docs/push.md). The agent asks service or
	// addresses, the resolver's Service, for their addresses, and watches no object. Empty: it watches service.
	Headless ServiceName `yaml:"headless" format:"service"`
	// TCP connections to each server.
	Connections int `yaml:"connections" min:"1" max:"16"`
	// `on`: a server reports changes of the names that it is asked for, with `central` (docs/push.md). `off`: answers live by
	// their TTL.
	Push bool `yaml:"push" words:"off,on"`
	// The certificates of the servers. With serverName they are asked over TLS (RFC 7858).
	CentralTLS `yaml:"tls"`
}

// CentralTLS is the section cluster.central.tls.
type CentralTLS struct {
	// The name in the certificates. Empty: the servers are asked over TCP.
	ServerName string `yaml:"serverName" format:"serverName"`
	// A file of CA certificates (PEM). Empty: the system's.
	CA string `yaml:"ca" format:"path"` // absolute unless Parse has read a relative path
	// The port of all servers, whatever Service and addresses say.
	TLSPort uint16 `yaml:"port" min:"1" max:"65535"`
}

// Domains returns clusterDomain and cluster.domains.
func (c *Config) Domains() []string { return append([]string{c.ClusterDomain}, c.Cluster.Domains...) }

// IsSet reports whether there is a central resolver at all.
func (c Central) IsSet() bool { return c.Service != ServiceName{} || len(c.Addresses) > 0 }

// Watched returns the Service whose endpoints are watched at the API server, the zero value if none is.
func (c Central) Watched() ServiceName {
	if c.Headless != (ServiceName{}) {
		return ServiceName{}
	}
	return c.Service
}

// Endpoints returns the Service whose endpoints are followed, the zero value for fixed addresses.
func (c Central) Endpoints() ServiceName {
	if c.Headless != (ServiceName{}) {
		return c.Headless
	}
	return c.Service
}

// Hosts is the section hosts.
type Hosts struct {
	// Files in the format of /etc/hosts.
	Files []string `yaml:"files" format:"file"` // absolute unless Parse has read relative paths
	// Names with addresses, such as `{db.example: [192.0.2.1, "2001:db8::1"]}`. They override files. CNAME, SVCB and HTTPS
	// get an empty answer; other types, such as MX, are looked up. Add a dot to names that YAML reads as another type,
	// such as `no`.
	Names map[string][]netip.Addr `yaml:"names"` // by names that are lower-case and absolute, never empty, of both families mixed
	// The TTL of the answers.
	TTL time.Duration `yaml:"ttl" format:"ttl" min:"0s" max:"1h"`
	// `on`: the reverse names of the addresses give these names. `off`: they are looked up.
	NoReverse bool `yaml:"reverse" words:"on,off"`
}

// Block is the section block.
type Block struct {
	// The lists. Hosts, templates, and records of etcd come before them.
	Files []string `yaml:"files" format:"file"` // absolute unless Parse has read relative paths
	// What the client gets for a name on a list: `nxdomain`, `nodata`, or a list of addresses such as `[0.0.0.0, "::"]`.
	Answer BlockAnswer `yaml:"answer"`
}

// Template is an item of templates.
type Template struct {
	// The zone, as in forward. Required.
	Zone string `yaml:"zone" format:"zone" required:"write \".\" for all names" example:"ip.example"` // lower-case and absolute
	// The query types, such as `A`, `AAAA` or `TYPE65`. Empty: every type.
	Types []uint16 `yaml:"types" format:"type" example:"[A]"`
	// Go regular expressions. One must match the name, in lower case with a dot at the end. Empty: every name matches.
	Match []string `yaml:"match" format:"expression" example:"['^(?P<a>[0-9]+)-(?P<b>[0-9]+)[.]ip[.]example[.]$']"`
	// `NOERROR`, `FORMERR`, `SERVFAIL`, `NXDOMAIN`, `NOTIMP` or `REFUSED`.
	Rcode int `yaml:"rcode" words:"NOERROR,FORMERR,SERVFAIL,NXDOMAIN,NOTIMP,REFUSED"`
	// Records as in a zone file, each a Go text/template with `.Name`, `.Zone`, `.Type`, `.Class`, `.Match` (a list) and
	// `.Group` (by number and by name), and the function `parseInt`. An empty result is left out.
	Answer []string `yaml:"answer" format:"record" repeats:"true" example:"['{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{ .Group.b }}']"`
	// Authority records, likewise.
	Authority []string `yaml:"authority" format:"record" repeats:"true" example:"[]"`
	// Additional records, likewise.
	Additional []string `yaml:"additional" format:"record" repeats:"true" example:"[]"`
}

// DNS64 is the section dns64.
type DNS64 struct {
	// The prefix of the NAT64, such as `64:ff9b::/96`. Empty: off. Reverse names of its addresses give those of the IPv4
	// addresses. `64:ff9b::/96` is not for private addresses (RFC 6052), such as those of Services. Upstreams get half of
	// limits.deadline to answer for IPv6.
	Prefix netip.Prefix `yaml:"prefix" format:"nat64"` // the zero value: off
	// `true`: synthesized addresses replace IPv6 addresses that names have.
	TranslateAll bool `yaml:"translateAll"`
	// The clients that get synthesized addresses: `ipv6` (those that ask over IPv6) or `all`.
	Clients string `yaml:"clients" words:"ipv6,all"`
}

// Cache is the section cache.
type Cache struct {
	// Bytes for keys, answers and their index. The container's memory limit must be higher (docs/memory.md).
	Size int64 `yaml:"size" format:"size" min:"1Mi" max:"1Ti"` // in bytes
	// The lowest TTL.
	MinTTL time.Duration `yaml:"minTTL" format:"ttl" min:"0s" max:"1h"`
	// The highest TTL.
	MaxTTL time.Duration `yaml:"maxTTL" format:"ttl" min:"1s" max:"168h"`
	// The highest TTL of a denial.
	NegativeTTL time.Duration `yaml:"negativeTTL" format:"ttl" min:"1s" max:"24h"`
	// The longest time that a failure of upstreams is cached.
	FailureTTL time.Duration `yaml:"failureTTL" format:"ttl" min:"1s" max:"5m"`
	// Frequently used answers are fetched again before they expire.
	Prefetch Prefetch `yaml:"prefetch" off:"hits: 0"`
	// Stale answers, served while upstreams are slow or fail (RFC 8767), with EDE 3 (19 for a denial).
	ServeStale ServeStale `yaml:"serveStale" off:"for: 0s"`
	// Names that are resolved before pods ask, and survive a long outage of upstreams (docs/keep.md).
	Keep Keep `yaml:"keep"`
	// `on`: the denial of a name covers the names below it (RFC 8020), but not cluster names, names below one label, or
	// the zone of a route. Many servers wrongly deny a name that only has names below it; then those below fail for all
	// pods of the node.
	NXDomainCut bool `yaml:"nxdomainCut" words:"off,on"`
}

// Prefetch is the section cache.prefetch.
type Prefetch struct {
	// How often an answer must have been used. 0: no prefetch.
	Hits int `yaml:"hits" min:"0" max:"1000000"`
	// The part of the TTL that remains when the answer is fetched again.
	Remaining float64 `yaml:"remaining" format:"percent" min:"1%" max:"90%"` // a part of 1, in steps of 0.0001
}

// ServeStale is the section cache.serveStale.
type ServeStale struct {
	// How long an expired answer may be served. 0s: never.
	For time.Duration `yaml:"for" format:"ttl" min:"0s" max:"72h"`
	// The TTL of a stale answer. While refreshes fail, upstreams are asked after 1s, 2s, 4s … up to this time.
	TTL time.Duration `yaml:"ttl" format:"ttl" min:"1s" max:"5m"`
	// How long a client waits for upstreams before it gets a stale answer.
	After time.Duration `yaml:"after" min:"10ms" max:"30s"`
}

// Keep is the section cache.keep.
type Keep struct {
	// The names, at most 64, without wildcards, as they are looked up after `rewrite`. Their A and AAAA records are fetched again before they expire, are
	// not evicted, and are in each snapshot.
	Names []string `yaml:"names" format:"name"` // lower-case and absolute
	// How long such an answer may be served after it has expired, while upstreams fail. At least serveStale.for.
	For time.Duration `yaml:"for" format:"ttl" min:"1m" max:"168h"`
}

// Snapshot is the section snapshot.
type Snapshot struct {
	// A folder that outlives the process, such as a hostPath volume. Empty: no snapshots.
	Folder string `yaml:"folder" format:"path"` // absolute unless Parse has read a relative path
	// The time between snapshots.
	Period time.Duration `yaml:"period" min:"10s" max:"1h"`
	// The largest size in bytes. On a tmpfs the memory limit counts it, twice while it is written.
	Size int64 `yaml:"size" format:"size" min:"1Mi" max:"1Gi"` // in bytes
	// An older snapshot is not read.
	MaxAge time.Duration `yaml:"maxAge" min:"1m" max:"168h"`
}

// Limits is the section limits.
type Limits struct {
	// Concurrent upstream exchanges, of about 2.5 KiB. A low memory limit lowers the bound (`memory.inflight` in /status).
	Inflight int `yaml:"inflight" min:"1" max:"1048576"`
	// Client queries that wait for these exchanges. A low memory limit lowers it too.
	Waiting int `yaml:"waiting" min:"1" max:"16777216"`
	// The most waiting queries of one client address; 0: no fixed bound. A client may use what others leave free, up to
	// five sixths of inflight and waiting. A UDP client over its limit gets at most 1,000 SERVFAILs a second; further
	// queries are dropped.
	PerClient int `yaml:"perClient" min:"0" max:"16777216"`
	// The longest time for a client query. Stub resolvers give up after 5 seconds.
	Deadline time.Duration `yaml:"deadline" min:"100ms" max:"1m"`
	// Open TCP sessions, of about 16 KiB. A low memory limit lowers it too.
	TCPSessions int `yaml:"tcpSessions" min:"1" max:"1048576"`
	// Open TCP sessions of one client address.
	TCPPerClient int `yaml:"tcpPerClient" min:"1" max:"1048576"`
	// An idle TCP session is closed after this time.
	TCPIdle time.Duration `yaml:"tcpIdle" min:"1s" max:"1h"`
}

// Push is the section push.
type Push struct {
	// Prefixes of the clients that may subscribe, such as those of the nodes. Empty: off.
	Clients []netip.Prefix `yaml:"clients" format:"prefix"`
}

// Identity is the section identity.
type Identity struct {
	// The answer to `version.bind`.
	Version string `yaml:"version" format:"text"`
	// The answer to `hostname.bind` and `id.server`. `auto`: the host name of the node.
	Hostname string `yaml:"hostname" format:"text"`
}

// Admin is the section admin.
type Admin struct {
	// An IP address with a port. Empty: none.
	Address netip.AddrPort `yaml:"address" format:"endpoint"` // the zero value: none
	// The path of a unix socket for the commands and for profiles. Empty: none.
	Socket string `yaml:"socket" format:"socket"`
	// Host names in URLs, besides IP addresses and `localhost`. Others are refused, against DNS rebinding.
	Hosts []string `yaml:"hosts" format:"host"` // lower-case, without a dot at the end
	// The name of the cluster on the web page, in /status and in `nodecache_node_info`.
	ClusterName string `yaml:"clusterName" format:"text"`
	// A second address, for clients of the network: over TLS, with a token that may `get` the URL, as the API server says
	// (docs/status.md).
	AdminTLS `yaml:"tls"`
}

// AdminTLS is the section admin.tls.
type AdminTLS struct {
	// An IP address with a port. With it, `admin.address` gives `/metrics`, `/status` and `/` only to clients with the token
	// of `node-cache page`. Empty: none.
	TLSAddress netip.AddrPort `yaml:"address" format:"endpoint"` // the zero value: none
	// A file with a certificate and those of its issuers (PEM). The agent reads a changed file. Empty: self-signed.
	Cert string `yaml:"cert" format:"path"` // absolute unless Parse has read a relative path
	// The file with its key (PEM).
	Key string `yaml:"key" format:"path"` // absolute unless Parse has read a relative path
}

// Probe is an item of probes. [DefaultProbe] has the value of every absent key.
type Probe struct {
	// The label of metrics and page. Required.
	Label string `yaml:"label" format:"label" required:"it names the series and the page of the probe, like cluster" example:"cluster"`
	// The queried server, over UDP, or after `tcp://` over TCP. Empty: this process, at the first of listen.addresses.
	Server string `yaml:"server" format:"probeServer"` // an address and a port, maybe with tcp:// before it, or empty
	// The queried name. Required.
	Name string `yaml:"name" format:"name" required:"say what is asked for, like kubernetes.default.svc.cluster.local" example:"kubernetes.default.svc.cluster.local"`
	// The query type, such as `A`, `AAAA` or `SRV`.
	Type uint16 `yaml:"type" format:"type"`
	// The time between queries.
	Interval time.Duration `yaml:"interval" min:"1s" max:"1h"`
	// The longest time for an answer.
	Timeout time.Duration `yaml:"timeout" min:"10ms" max:"1m"`
}

// NodePods is the section pods.
type NodePods struct {
	// Where the agent learns the pods of its node: from the API server (`api`), the kubelet's Pods API (`kubelet`), the
	// kubelet or else the API server (`auto`), or nowhere (`off`).
	Identity string `yaml:"identity" words:"off,api,kubelet,auto"`
	// `on`: once the first name of a pod's search path is denied, the agent answers with the first that exists
	// (docs/pods.md). Needs `identity`.
	SearchPath bool `yaml:"searchPath" words:"off,on"`
	// The namespaces whose pods walk their search path themselves.
	SearchPathExcept []string `yaml:"searchPathExcept" format:"namespace"`
}

// Log is the section log.
type Log struct {
	// The lowest level to log: `debug`, `info`, `warn` or `error`.
	Level slog.Level `yaml:"level" words:"debug,info,warn,error"`
	// `json` or `text`.
	Format string `yaml:"format" words:"json,text"`
	// The queries to log: `off`, `errors`, `slow` (a second or longer), `slow=500ms` (that long, 1ms to 1m),
	// `sample=100` (one in a hundred) or `all`.
	Queries QueryLog `yaml:"queries" format:"queryLog"`
	// The dnstap collector of all DNS messages: `unix:///path` or `tcp://IP:PORT`. Empty: none.
	Dnstap string `yaml:"dnstap" format:"collector"`
}

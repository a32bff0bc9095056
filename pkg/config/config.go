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
	// The version of this format. It may be left out.
	APIVersion string `yaml:"apiVersion" words:"node-cache.io/v1alpha1"`
	// Always Config. It may be left out.
	Kind string `yaml:"kind" words:"Config"`

	Config
}

// Config is the configuration of one agent or resolver. [Default] has the value of every absent key.
type Config struct {
	// Where DNS queries are taken, over UDP and TCP.
	Listen Listen `yaml:"listen"`
	// Which upstreams know which names. The route with the longest zone that a name ends in is taken. The list
	// replaces the default as a whole, and must have a route for the zone `.`.
	Forward []Route `yaml:"forward"` // zones are unique; there is always one for the root
	// The domain of the cluster. Not the root.
	ClusterDomain string `yaml:"clusterDomain" format:"domain"` // lower-case and absolute
	// Who answers the names of the cluster domain and the reverse names of the cluster, and from what.
	Cluster Cluster `yaml:"cluster"`
	// Names that are answered here from addresses that are written down. They come before everything that is looked
	// up: the cluster, the cache and the upstreams.
	Hosts Hosts `yaml:"hosts"`
	// Other names for names. The first rule that fits is taken, once: what comes of it is not rewritten again. The
	// reply names what the client has asked for, also in its records. A rule has one of `exact`, `prefix` and
	// `suffix`. Letters are the same in either case, and a dot at the end means nothing.
	Rewrite []Rewrite `yaml:"rewrite"`
	// Answers made by pattern. The first template that fits a question answers it, after hosts and before all that is
	// looked up.
	Templates []Template `yaml:"templates"`
	// IPv6 addresses for names that have IPv4 addresses only, for clients that reach those through a NAT64 (RFC 6147).
	// An IPv4 address in the form of an IPv6 address (`::ffff:0:0/96`) counts as none, and these clients get none.
	// With a prefix, `ipv4only.arpa`, by which clients find it, and what leads back to that name are answered here
	// (RFC 7050, RFC 8880).
	DNS64 DNS64 `yaml:"dns64"`
	// The link of this machine that holds listen.addresses, for `node-cache agent` only.
	Interface Interface `yaml:"interface"`
	// The rules in the kernel that hand the DNS queries of this machine's pods and programs to the agent while it
	// answers, and to others while it does not, for `node-cache agent` only.
	Intercept Intercept `yaml:"intercept"`
	// The cache, bounded in bytes and in time.
	Cache Cache `yaml:"cache"`
	// A copy of the cache, and with cluster.resolver `local` of the view of the cluster, that outlives a restart.
	Snapshot Snapshot `yaml:"snapshot"`
	// How one agent takes over from another on the same machine without a query that is lost, for `node-cache agent`
	// only.
	Handover Handover `yaml:"handover"`
	// What is done at one time. What goes beyond is shed, and counted.
	Limits Limits `yaml:"limits"`
	// What a client gets that asks for it in class CH. An empty text: the question is refused.
	Identity Identity `yaml:"identity"`
	// The HTTP server for /metrics, /livez, /readyz and /status, and for `node-cache cache`, which it serves to this
	// machine only.
	Admin Admin `yaml:"admin"`
	// Questions that are asked again and again, to see who answers them and how fast: each has metrics by its label,
	// and the page /healthcheck/LABEL of the admin server, which is 200 while the last answer is a good one. At most
	// 32.
	Probes []Probe `yaml:"probes" max:"32"`
	// What is logged.
	Log Log `yaml:"log"`
}

// Listen is the section listen.
type Listen struct {
	// IP addresses without a port, each once, at least one. `0.0.0.0` is every IPv4 address, `::` every address;
	// nothing they cover may stand beside them.
	Addresses []netip.Addr `yaml:"addresses" format:"listenAddress" required:"name at least one address"`
	// The port of every address, 1 to 65535.
	Port uint16 `yaml:"port" min:"1" max:"65535"`
	// The largest answer over UDP in bytes, 512 to 4096. A client may ask for less, never for more. Above 1232 bytes
	// an answer may travel in fragments, which some networks lose.
	UDPSize int `yaml:"udpSize" min:"512" max:"4096"`
}

// Route is an item of forward. [DefaultRoute] has the value of every absent key.
type Route struct {
	// The zone, a name of letters, digits, `-`, `_` and `/`. It holds itself and every name below it. Each zone has
	// one route. A route must have a zone.
	Zone string `yaml:"zone" format:"zone" required:"write \".\" for all names"` // lower-case and absolute
	// Upstreams, each once, at least one. `192.0.2.1`, `192.0.2.1:5353` or `udp://192.0.2.1`: over UDP, and over TCP
	// when the answer is cut. `tcp://192.0.2.1`: over TCP only. `tls://192.0.2.1#dns.example`: over TLS (RFC 7858),
	// whose certificate must be for the name behind the #, or without one for the address.
	// `https://192.0.2.1/path#dns.example` or `https://dns.example/path`: over HTTP/2 (RFC 8484), the second at the
	// addresses that bootstrap lists; the path is `/dns-query` unless one is given. `/etc/resolv.conf`: the
	// nameservers of that file, read again when it changes. The port is 53, with tls:// 853 and with https:// 443
	// unless one is given. An IPv6 address with a port stands in brackets.
	To []Target `yaml:"to" format:"target" required:"name at least one upstream"`
	// The IP addresses of the host that an https:// URL names in place of an address, each once. Each is an upstream
	// of its own. One host of a route may be named so.
	Bootstrap []netip.Addr `yaml:"bootstrap" format:"bootstrap"` // empty without such a host
	// Which upstream is asked first: `fastest` (the quickest), `sequential` (the first of the list that does not fail)
	// or `random` (any, each as often as the others). With each, another is asked when the first is late or fails.
	Policy string `yaml:"policy" words:"fastest,sequential,random"`
	// Connections to each upstream over TCP, TLS and HTTPS, 1 to 16.
	Connections int `yaml:"connections" min:"1" max:"16"`
	// Queries a second to each upstream, up to 1000000. What goes beyond is sent to the others, or fails. 0: no bound.
	Rate int `yaml:"rate" min:"0" max:"1000000"`
	// `on`: over UDP names are sent in random upper and lower case, which the answer must repeat: one more thing that
	// a forger has to guess. An upstream that does not repeat it is found out and spared. `off`: names are sent in
	// lower case.
	PlainCase bool `yaml:"case" words:"on,off"`
	// `on`: clients get the flag AD (the answer is validated, RFC 4035) as upstreams over UDP and TCP set it. Only for
	// validating upstreams on a network without forged packets. `off`: only as those over TLS and HTTPS set it.
	TrustAD bool `yaml:"trustAD" words:"off,on"`
	// The certificates of upstreams over TLS and HTTPS.
	RouteTLS `yaml:"tls"`
	// The requests to upstreams over HTTPS.
	RouteHTTPS `yaml:"https"`
	// `on`: while all upstreams of the route are down, the servers of intercept.fallback are asked in their place, 32
	// queries at a time, over TCP. `off`: the queries fail, as they do where intercept.fallback names no server, and
	// where an upstream is asked over TLS or HTTPS: queries that were encrypted are never sent in plain text.
	NoFallback bool `yaml:"fallback" words:"on,off"`
	// What happens to the client-subnet option of a query (RFC 7871): `remove` takes it away, `pass` sends it on.
	ClientSubnet bool `yaml:"clientSubnet" words:"remove,pass"`
	// The shortest time that an answer of this route is kept, as cache.minTTL, which it is when nothing stands here.
	MinTTL time.Duration `yaml:"minTTL" format:"ttl" min:"0s" max:"1h" inherits:"cache.minTTL"`
	// The longest time, as cache.maxTTL, which it is when nothing stands here.
	MaxTTL time.Duration `yaml:"maxTTL" format:"ttl" min:"1s" max:"168h" inherits:"cache.maxTTL"`
	// The longest time for a denial, as cache.negativeTTL, which it is when nothing stands here.
	NegativeTTL time.Duration `yaml:"negativeTTL" format:"ttl" min:"1s" max:"24h" inherits:"cache.negativeTTL"`
	// `on` or `off`: no answer of this route is kept, and what was kept is dropped. Identical queries still wait for
	// the same one, and a failure is kept for cache.failureTTL.
	NoCache bool `yaml:"cache" words:"on,off"`
}

// Upstreams are the targets of r with addresses of their own: in place of an HTTPS target that has none stands one
// for each address of Bootstrap.
func (r Route) Upstreams() []Target {
	var list []Target
	for _, t := range r.To {
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
	// A file of certificates (PEM) that those of the upstreams must lead to, read again when it changes. An empty
	// text: the certificates that the system trusts. A relative path begins at the folder of the configuration file.
	CA string `yaml:"ca" format:"path"` // absolute unless Parse has read a relative path
}

// RouteHTTPS is the section https of a route.
type RouteHTTPS struct {
	// `post` or `get` (where something on the way may keep answers).
	Method string `yaml:"method" words:"post,get"`
}

// Cluster is the section cluster.
type Cluster struct {
	// `none`: they are forwarded like other names. `local`: this process, from its own watch of the API. `central`:
	// the resolver that cluster.central names. With `local` and `central` the domain itself may have no route; a name
	// below it may.
	Resolver string `yaml:"resolver" words:"none,local,central"`
	// A kubeconfig file. An empty text: the service account of the pod. A relative path begins at the folder of the
	// configuration file. It is read once; the files it names, such as a tokenFile, are followed.
	Kubeconfig string `yaml:"kubeconfig" format:"path"` // absolute unless Parse has read a relative path
	// A folder of YAML objects in place of an API server. A relative path begins at the folder of the configuration
	// file. Not together with kubeconfig.
	Manifests string `yaml:"manifests" format:"path"` // likewise
	// A resolver that has the API. It is asked over TCP: with `local` for what this node cannot know, with `central`
	// for all names of the cluster.
	Central Central `yaml:"central"`
	// `true`: the Services of the API are watched, and when one changes what is kept of it is dropped, denials
	// included. Only with resolver `central`; with `local` the view of the API does that. Needs the service account,
	// kubeconfig or manifests as `local` does, but reads Services alone, and has no view to answer from.
	Invalidate bool `yaml:"invalidate"`
	// The endpoints that are known: `headless` (those of headless services), `all` or `none`.
	Endpoints string `yaml:"endpoints" words:"headless,all,none"`
	// What an endpoint without a hostname is named by: its `address` or its `pod`.
	PodNames bool `yaml:"endpointNames" words:"address,pod"`
	// The names of pods by their address, such as `10-0-0-1.shop.pod.cluster.local`: `disabled` (none exist),
	// `insecure` (all exist) or `verified` (those of pods that are there).
	Pods string `yaml:"pods" words:"disabled,insecure,verified"`
	// The namespaces whose objects are served, each once. None: all.
	Namespaces []string `yaml:"namespaces" format:"namespace"`
	// A label selector that services must match, such as `app=web, tier!=cache`. An empty text: all do.
	ServiceSelector string `yaml:"serviceSelector" format:"selector"`
	// A label selector that namespaces must match. An empty text: all do. Not together with namespaces.
	NamespaceSelector string `yaml:"namespaceSelector" format:"selector"`
	// `true`: the name of a service without a ready endpoint does not exist. Needs endpoints: all.
	IgnoreEmptyService bool `yaml:"ignoreEmptyService"`
	// The TTL of the answers, 0s to 1h, in whole seconds.
	TTL time.Duration `yaml:"ttl" format:"ttl" min:"0s" max:"1h"`
	// A view of the API older than this denies no name, 5s to 1h.
	StaleAfter time.Duration `yaml:"staleAfter" min:"5s" max:"1h"`
	// The prefixes of services and pods, such as `10.96.0.0/12`, each once. Their reverse names are the cluster's:
	// with `local` those of unknown addresses are denied, with `central` they are sent to the central resolver. None:
	// with `local` no address is denied, with `central` all reverse names without a route of their own are sent.
	Ranges []netip.Prefix `yaml:"ranges" format:"prefix"`
	// The topology zone of this node: its endpoints come first in headless answers, and those of central.service in it
	// are asked while they are not much busier than the others. `auto`: the environment variable NODE_ZONE, else the
	// zone of the Node object that NODE_NAME names. An empty text: none come first.
	NodeZone string `yaml:"nodeZone" format:"topologyZone"`
	// IP addresses and prefixes of those who may transfer the zone (AXFR over TCP), each once. It takes effect with
	// `local`.
	TransferTo []netip.Prefix `yaml:"transferTo" format:"client"` // one address is a prefix of all its bits
}

// Central is the section cluster.central.
type Central struct {
	// A Service as namespace/name. Its ready endpoints are followed and asked directly, those that are about to end
	// only while no other is ready.
	Service ServiceName `yaml:"service" format:"service"`
	// IP addresses with or without a port, 53 unless one is given, each once. In place of service, not beside it.
	Addresses []netip.AddrPort `yaml:"addresses" format:"server"`
	// TCP connections to each endpoint or address, 1 to 16.
	Connections int `yaml:"connections" min:"1" max:"16"`
}

// IsSet reports whether there is a central resolver at all.
func (c Central) IsSet() bool { return c.Service != ServiceName{} || len(c.Addresses) > 0 }

// Hosts is the section hosts.
type Hosts struct {
	// Files in the format of /etc/hosts, each once, followed as they change. A relative path begins at the folder of
	// the configuration file.
	Files []string `yaml:"files" format:"file"` // absolute unless Parse has read relative paths
	// Names, each with a list of addresses, such as `{db.example: [192.0.2.1, "2001:db8::1"]}`. A name that is here is
	// not looked for in the files. Queries for A and AAAA get its addresses, those for other types that there is
	// nothing; names that are not here are looked up as ever. Write `y`, `no`, a number and what else YAML knows with
	// a dot at its end.
	Names map[string][]netip.Addr `yaml:"names"` // by names that are lower-case and absolute, never empty, of both families mixed
	// The TTL of the answers, 0s to 1h, in whole seconds.
	TTL time.Duration `yaml:"ttl" format:"ttl" min:"0s" max:"1h"`
	// `on`: the reverse names of the addresses lead to these names. `off`: they are looked up as ever.
	NoReverse bool `yaml:"reverse" words:"on,off"`
}

// Rewrite is an item of rewrite. One of Exact, Prefix and Suffix is not empty. All are of names in lower case without the dot
// at their end.
type Rewrite struct {
	// The whole name.
	Exact string `yaml:"exact" format:"part" omit:"empty" example:"shop.example"`
	// The beginning of a name, whether or not a label ends there.
	Prefix string `yaml:"prefix" format:"part" omit:"empty" example:"old-"`
	// The end of a name, whether or not a label begins there: write a dot before it where one should.
	Suffix string `yaml:"suffix" format:"part" omit:"empty" example:".old.example"`
	// What stands in its place: with `exact` the whole name, else a part that may be empty.
	To string `yaml:"to" format:"part" required:"say what is asked for in its place" example:"shop.prod.svc.cluster.local,new-,.new.example"`
}

// Rule returns which part of a name is replaced, RewriteExact, RewritePrefix or RewriteSuffix, and its text.
func (r *Rewrite) Rule() (kind, from string) {
	switch {
	case r.Prefix != "":
		return RewritePrefix, r.Prefix
	case r.Suffix != "":
		return RewriteSuffix, r.Suffix
	}
	return RewriteExact, r.Exact
}

// Template is an item of templates.
type Template struct {
	// The zone, itself and every name below it, written as in forward. A template must have one.
	Zone string `yaml:"zone" format:"zone" required:"write \".\" for all names" example:"ip.example"` // lower-case and absolute
	// The types of questions, each once, such as `A`, `AAAA` or `TYPE65`. None: every type.
	Types []uint16 `yaml:"types" format:"type" example:"[A]"`
	// Regular expressions as in Go, each once, of which one must match the name, which is in lower case with a dot at
	// its end. The first that does gives `.Match` and `.Group`. None: every name is meant.
	Match []string `yaml:"match" format:"expression" example:"['^(?P<a>[0-9]+)-(?P<b>[0-9]+)[.]ip[.]example[.]$']"`
	// The code of the answer: `NOERROR`, `FORMERR`, `SERVFAIL`, `NXDOMAIN`, `NOTIMP` or `REFUSED`.
	Rcode int `yaml:"rcode" words:"NOERROR,FORMERR,SERVFAIL,NXDOMAIN,NOTIMP,REFUSED"`
	// Records in the form of a zone file, each a template of Go's text/template with `.Name`, `.Zone`, `.Type`,
	// `.Class`, `.Match` (a list) and `.Group` (by number and by name), and the function `parseInt`. An empty one is
	// left out. There is no range and no directive such as `$INCLUDE`, and an action makes 8 KiB of text at most.
	Answer []string `yaml:"answer" format:"record" repeats:"true" example:"['{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{ .Group.b }}']"`
	// Records of the authority section, likewise.
	Authority []string `yaml:"authority" format:"record" repeats:"true" example:"[]"`
	// Records of the additional section, likewise.
	Additional []string `yaml:"additional" format:"record" repeats:"true" example:"[]"`
}

// DNS64 is the section dns64.
type DNS64 struct {
	// The prefix of the NAT64, such as `64:ff9b::/96`: of 32, 40, 48, 56, 64 or 96 bits. An empty text: none are made.
	// The reverse names of the addresses in it lead to those of the IPv4 addresses. `64:ff9b::/96` is not for private
	// addresses (RFC 6052), such as those of the cluster's Services: take a prefix of your own where these are meant
	// too. Servers that never answer for IPv6 have half of limits.deadline, so that there is time left to ask for
	// IPv4.
	Prefix netip.Prefix `yaml:"prefix" format:"nat64"` // the zero value: off
	// `true`: they are made for names that have IPv6 addresses as well, in place of these.
	TranslateAll bool `yaml:"translateAll"`
	// Who gets them: `ipv6` (those that ask over IPv6) or `all`.
	Clients string `yaml:"clients" words:"ipv6,all"`
}

// Interface is the section interface.
type Interface struct {
	// `true`: the agent puts every listen address on the link, makes the link where it is missing, and keeps both
	// right. None of the addresses may be a loopback address or stand for others. Needs the right NET_ADMIN.
	Manage bool `yaml:"manage"`
	// The name of the link, 1 to 15 letters, digits, `-`, `_` and `.`. It has no meaning with kind `lo`.
	Name string `yaml:"name" format:"link"`
	// The kind of the link: `dummy`, `bridge` (one without ports), `lo` (the loopback link, which is there already) or
	// `auto`, the first of these that the kernel has.
	Kind string `yaml:"kind" words:"auto,dummy,bridge,lo"`
}

// Intercept is the section intercept.
type Intercept struct {
	// `true`: the agent makes the rules and keeps them right. None of the listen addresses may be a loopback address
	// or stand for others. Needs the right NET_ADMIN, with iptables NET_RAW too.
	Manage bool `yaml:"manage"`
	// The address that the queries are for: `link-local` (a listen address, which the pods have in their resolv.conf)
	// or `transparent` (that of the DNS service, so that nothing changes for the pods; needs port 53).
	Mode string `yaml:"mode" words:"link-local,transparent"`
	// What the rules are written with: `nftables`, `iptables` or `auto`, whichever kube-proxy uses on this machine.
	Backend string `yaml:"backend" words:"auto,nftables,iptables"`
	// How long the agent's claim on the queries lasts, 1s to 1m. It is renewed while the agent answers itself over its
	// own sockets, several times in this span; when it lapses the kernel itself sends the queries elsewhere.
	Lease time.Duration `yaml:"lease" min:"1s" max:"1m"`
	// Where queries go with mode `link-local` while the agent does not answer: `central` (the resolver that
	// cluster.central names, its endpoints followed), `none`, or a list of IP addresses with or without a port, 53
	// unless one is given, each once. An address of a Service is no good here, nor in cluster.central.addresses then:
	// packets are rewritten once. With mode `transparent` they go where they are addressed to, and a list is an error.
	Fallback Fallback `yaml:"fallback"`
	// What becomes of link and rules when the agent ends: `fallback` (they stay, and queries go to the fallback),
	// `remove` (both are removed) or `auto`, which is fallback with mode `link-local` and remove with mode
	// `transparent`, where fallback is an error.
	OnExit string `yaml:"onExit" words:"auto,fallback,remove"`
	// The IP addresses of the DNS service, for mode `transparent` only, at most one of a family. None: those of
	// cluster.central.service, as they are when they are first heard of.
	Services []netip.Addr `yaml:"services" format:"serviceAddress"`
}

// Exit returns what happens to link and rules when the agent ends: OnExit, or what ExitAuto stands for.
func (i Intercept) Exit() string {
	switch {
	case i.OnExit != ExitAuto:
		return i.OnExit
	case i.Mode == ModeTransparent:
		return ExitRemove
	default:
		return ExitFallback
	}
}

// Cache is the section cache.
type Cache struct {
	// Bytes for keys, answers and what is needed to find them, 1Mi to 1Ti. The units are Ki, Mi, Gi, Ti (powers of
	// 1024), k, M, G, T (powers of 1000) or none for bytes. Under a memory limit leave 32 MiB beside it, and twice
	// snapshot.size where snapshots are kept in memory.
	Size int64 `yaml:"size" format:"size" min:"1Mi" max:"1Ti"` // in bytes
	// A shorter TTL is raised to this, 0s to 1h, and not more than maxTTL.
	MinTTL time.Duration `yaml:"minTTL" format:"ttl" min:"0s" max:"1h"`
	// A longer TTL is cut to this, 1s to 168h (RFC 8767 section 4).
	MaxTTL time.Duration `yaml:"maxTTL" format:"ttl" min:"1s" max:"168h"`
	// The longest time that a denial is kept, 1s to 24h (RFC 2308).
	NegativeTTL time.Duration `yaml:"negativeTTL" format:"ttl" min:"1s" max:"24h"`
	// How long the failure of an upstream is kept, 1s to 5m (RFC 9520).
	FailureTTL time.Duration `yaml:"failureTTL" format:"ttl" min:"1s" max:"5m"`
	// Answers in demand are asked for again before they expire.
	Prefetch Prefetch `yaml:"prefetch"`
	// Answers past their time are given while upstreams are slow or fail (RFC 8767), with EDE 3 (19 for a denial). A
	// name that the view of the cluster can answer never gets one.
	ServeStale ServeStale `yaml:"serveStale"`
	// `on`: while a name is known not to exist, no name below it does (RFC 8020). Not for the names of the cluster,
	// nor below a name of one label, nor at or above the zone of a route. `off`: each name is asked for, which an
	// upstream needs that denies `corp.example` while it knows names below it.
	NXDomainCut bool `yaml:"nxdomainCut" words:"off,on"`
}

// Prefetch is the section cache.prefetch.
type Prefetch struct {
	// How often an answer must have been asked for, 0 to 1000000. 0 turns prefetch off.
	Hits int `yaml:"hits" min:"0" max:"1000000"`
	// The part of the TTL that is left when it is asked for again, 1% to 90%, with at most two decimals.
	Remaining float64 `yaml:"remaining" format:"percent" min:"1%" max:"90%"` // a part of 1, in steps of 0.0001
}

// ServeStale is the section cache.serveStale.
type ServeStale struct {
	// How long past its time an answer is good enough, 0s to 72h, in whole seconds. 0s: never.
	For time.Duration `yaml:"for" format:"ttl" min:"0s" max:"72h"`
	// The TTL that such an answer is given with, 1s to 5m. While refreshes fail, upstreams are asked again after 1s,
	// 2s, 4s and so on up to this time.
	TTL time.Duration `yaml:"ttl" format:"ttl" min:"1s" max:"5m"`
	// How long upstreams have to answer first, 10ms to 30s, and less than limits.deadline.
	After time.Duration `yaml:"after" min:"10ms" max:"30s"`
}

// Snapshot is the section snapshot.
type Snapshot struct {
	// A folder that stays when the process ends, such as a hostPath volume. An empty text: no copy is made or read. A
	// relative path begins at the folder of the configuration file. It is written to a new file that takes the old
	// one's place; one that is damaged, or of another version, is refused by name, and the process starts without.
	Folder string `yaml:"folder" format:"path"` // absolute unless Parse has read a relative path
	// How often it is written, 10s to 1h and not more than maxAge, besides when the process ends.
	Period time.Duration `yaml:"period" min:"10s" max:"1h"`
	// Its bytes at most, 1Mi to 1Gi, the answers in most demand first. On a tmpfs they count against the memory limit
	// of the pod, while one is written twice.
	Size int64 `yaml:"size" format:"size" min:"1Mi" max:"1Gi"` // in bytes
	// An older one is not read, 1m to 168h. Answers in it go on ageing while no agent runs.
	MaxAge time.Duration `yaml:"maxAge" min:"1m" max:"168h"`
}

// Handover is the section handover.
type Handover struct {
	// The absolute path of a unix socket, at most 107 bytes, that both can reach, such as
	// `/run/node-cache/handover.sock`. An agent that finds another one behind it takes the listening sockets from it;
	// it is there itself for the next one. An empty text: an agent waits until the addresses are free.
	Socket string `yaml:"socket" format:"socket"`
}

// Limits is the section limits.
type Limits struct {
	// Upstream exchanges at one time, 1 to 1048576. Each takes some 2.5 KiB. Where the memory limit of the container
	// leaves less, fewer are under way (`memory.inflight` in /status).
	Inflight int `yaml:"inflight" min:"1" max:"1048576"`
	// Client queries that wait for these exchanges, from inflight up to 16777216. Identical queries wait for the same
	// one. Where the container's memory limit leaves no room for so many, fewer wait.
	Waiting int `yaml:"waiting" min:"1" max:"16777216"`
	// Of these, those of one client address at most, up to 16777216. 0: no fixed bound. Either way each client may
	// have what the others leave free, up to five sixths of inflight and waiting if it is alone. The more clients want
	// places, the fewer each may have, and the client with the most gets none back first. A UDP client over its limit
	// gets at most 1,000 SERVFAILs a second; further queries are dropped.
	PerClient int `yaml:"perClient" min:"0" max:"16777216"`
	// The longest time for a client query, 100ms to 1m. Stub resolvers give up after 5 seconds.
	Deadline time.Duration `yaml:"deadline" min:"100ms" max:"1m"`
	// Open TCP sessions, 1 to 1048576. Each takes some 16 KiB, and under a memory limit there may be fewer.
	TCPSessions int `yaml:"tcpSessions" min:"1" max:"1048576"`
	// Open TCP sessions of one client address, from 1 up to tcpSessions.
	TCPPerClient int `yaml:"tcpPerClient" min:"1" max:"1048576"`
	// A TCP session without a query ends after this time, 1s to 1h.
	TCPIdle time.Duration `yaml:"tcpIdle" min:"1s" max:"1h"`
}

// Identity is the section identity.
type Identity struct {
	// The answer to `version.bind`, up to 255 bytes.
	Version string `yaml:"version" format:"text"`
	// The answer to `hostname.bind` and `id.server`, up to 255 bytes. `auto` is the name of the machine.
	Hostname string `yaml:"hostname" format:"text"`
}

// Admin is the section admin.
type Admin struct {
	// An IP address with a port. An empty text turns the server off.
	Address netip.AddrPort `yaml:"address" format:"endpoint"` // the zero value: none
	// The absolute path of a unix socket for the same, at most 107 bytes. An empty text: none.
	Socket string `yaml:"socket" format:"socket"`
	// Names, each once, under which the address may be asked. Others are refused, as a web site may have pointed them
	// there; IP addresses and `localhost` are not.
	Hosts []string `yaml:"hosts" format:"host"` // lower-case, without a dot at the end
}

// Probe is an item of probes. [DefaultProbe] has the value of every absent key.
type Probe struct {
	// Its name, 1 to 32 of `a` to `z`, digits and `-`, each once. A probe must have one.
	Label string `yaml:"label" format:"label" required:"it names the series and the page of the probe, like cluster" example:"cluster"`
	// Who is asked: an IP address with or without a port, 53 unless one is given, over UDP, or with `tcp://` before it
	// over TCP. An empty text: this program, at the first of listen.addresses.
	Server string `yaml:"server" format:"probeServer"` // an address and a port, maybe with tcp:// before it, or empty
	// The name that is asked for. A probe must have one.
	Name string `yaml:"name" format:"name" required:"say what is asked for, like kubernetes.default.svc.cluster.local" example:"kubernetes.default.svc.cluster.local"`
	// The type that is asked for, such as `A`, `AAAA` or `SRV`.
	Type uint16 `yaml:"type" format:"type"`
	// From one question to the next, 1s to 1h.
	Interval time.Duration `yaml:"interval" min:"1s" max:"1h"`
	// The longest time for an answer, 10ms to 1m and not more than interval.
	Timeout time.Duration `yaml:"timeout" min:"10ms" max:"1m"`
}

// Log is the section log.
type Log struct {
	// The least important lines to write: `debug`, `info`, `warn` or `error`.
	Level slog.Level `yaml:"level" words:"debug,info,warn,error"`
	// `json` or `text`.
	Format string `yaml:"format" words:"json,text"`
	// The queries to log: `off`, `errors` (those that failed), `slow` (those that took long), `sample=100` (one in a
	// hundred, or in any number up to 1000000000) or `all`.
	Queries QueryLog `yaml:"queries" format:"queryLog"`
}

// The port of the admin server.
const adminPort = 9253

// The bounds on TTLs, of the cache and so of each route.
const (
	defaultMinTTL      = 5 * time.Second
	defaultMaxTTL      = time.Hour
	defaultNegativeTTL = 30 * time.Second
)

// Default returns the configuration of an empty file in a role. It shares nothing with other calls.
func Default(role Role) Config {
	c := Config{
		Listen: Listen{
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})},
			Port:      1053,
			UDPSize:   1232,
		},
		Forward:       []Route{DefaultRoute(".", Target{Kind: ResolvConf, Path: "/etc/resolv.conf"})},
		ClusterDomain: "cluster.local.",
		Cluster: Cluster{
			Resolver:   ResolverNone,
			Central:    Central{Connections: 2},
			Endpoints:  EndpointsHeadless,
			Pods:       PodsInsecure,
			TTL:        5 * time.Second,
			StaleAfter: 90 * time.Second,
			NodeZone:   "auto",
		},
		Hosts:     Hosts{TTL: 30 * time.Second},
		DNS64:     DNS64{Clients: DNS64IPv6},
		Interface: Interface{Name: "nodelocaldns", Kind: LinkAuto},
		Intercept: Intercept{
			Mode: ModeLinkLocal, Backend: BackendAuto, OnExit: ExitAuto,
			Lease: 3 * time.Second, Fallback: Fallback{Central: true},
		},
		Cache: Cache{
			Size:        64 << 20,
			MinTTL:      defaultMinTTL,
			MaxTTL:      defaultMaxTTL,
			NegativeTTL: defaultNegativeTTL,
			FailureTTL:  5 * time.Second,
			Prefetch:    Prefetch{Hits: 2, Remaining: 0.1},
			ServeStale:  ServeStale{For: time.Hour, TTL: 30 * time.Second, After: 200 * time.Millisecond},
			NXDomainCut: true,
		},
		Snapshot: Snapshot{Period: time.Minute, Size: 16 << 20, MaxAge: 24 * time.Hour},
		Limits: Limits{
			Inflight:     4096,
			Waiting:      16384,
			Deadline:     4 * time.Second,
			TCPSessions:  1024,
			TCPPerClient: 128,
			TCPIdle:      10 * time.Second,
		},
		Admin: Admin{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), adminPort)},
		Log:   Log{Level: slog.LevelInfo, Format: "json", Queries: QueryLog{Mode: QueriesOff}},
	}
	if role == Resolver {
		// It runs in a pod of its own, and what asks it, scrapes it and probes it does not.
		c.Listen.Addresses = []netip.Addr{netip.IPv6Unspecified()}
		c.Admin.Address = netip.AddrPortFrom(netip.IPv6Unspecified(), adminPort)
		c.Cluster.Resolver = ResolverLocal
		c.Cluster.Endpoints = EndpointsAll
	}
	return c
}

// DefaultRoute returns the route of a zone, which must be lower-case and absolute, with every other key at its default,
// the bounds on its TTLs at those of a cache at its defaults.
func DefaultRoute(zone string, to ...Target) Route {
	return Route{
		Zone: zone, To: to, Policy: PolicyFastest, Connections: 2, RouteHTTPS: RouteHTTPS{Method: MethodPost},
		MinTTL: defaultMinTTL, MaxTTL: defaultMaxTTL, NegativeTTL: defaultNegativeTTL,
	}
}

// DefaultProbe returns the probe of a label and a name, which must be lower-case and absolute, with every other key at
// its default.
func DefaultProbe(label, name string) Probe {
	return Probe{Label: label, Name: name, Type: 1, Interval: 5 * time.Second, Timeout: time.Second}
}

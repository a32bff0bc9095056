// SPDX-License-Identifier: Apache-2.0

package status

// A Reason says what kind of problem there is, in the form of the reasons of Kubernetes Events. It is a metric label, from a closed set.
type Reason string

// The reasons.
const (
	AddressElsewhere   Reason = "AddressElsewhere"   // another link has an address of the agent
	BlockInvalid       Reason = "BlockInvalid"       // lines of a block list are not used
	BlockUnreadable    Reason = "BlockUnreadable"    // the content of a block list may be old
	CentralUnusable    Reason = "CentralUnusable"    // the central resolver is unknown, has no ready endpoint, or is not watched
	ConfigNeedsRestart Reason = "ConfigNeedsRestart" // keys of the configuration are not in use yet
	ConfigRefused      Reason = "ConfigRefused"      // the running configuration stays
	ConfigUnreadable   Reason = "ConfigUnreadable"   // a change of the configuration would not be seen
	EtcdFull           Reason = "EtcdFull"           // records of etcd exceed their memory
	EtcdInvalid        Reason = "EtcdInvalid"        // records of etcd are not served
	EtcdUnavailable    Reason = "EtcdUnavailable"    // the records of etcd may be old
	FallbackBroken     Reason = "FallbackBroken"     // without the agent, pods get no answers, or not all
	FederationUnknown  Reason = "FederationUnknown"  // federations have no aliases
	ForeignSocket      Reason = "ForeignSocket"      // another process is bound to an address of the agent
	HandoverFails      Reason = "HandoverFails"      // the next agent cannot take over the sockets
	HostsInvalid       Reason = "HostsInvalid"       // lines of a hosts file are not served
	HostsUnreadable    Reason = "HostsUnreadable"    // the content of a hosts file may be old
	KeepFails          Reason = "KeepFails"          // a name of cache.keep has no answer for an outage of upstreams
	KernelFull         Reason = "KernelFull"         // the kernel has no room for more answers
	KernelIncomplete   Reason = "KernelIncomplete"   // some pods get no answers from the kernel
	LastGoodInUse      Reason = "LastGoodInUse"      // there was no valid configuration at the start
	LastGoodNotSaved   Reason = "LastGoodNotSaved"   // the next start may lack a valid configuration
	LeaseNotHeld       Reason = "LeaseNotHeld"       // queries go to the fallback
	LinkContested      Reason = "LinkContested"      // another program changes the link
	LinkIncomplete     Reason = "LinkIncomplete"     // the link lacks an address
	ManifestsInvalid   Reason = "ManifestsInvalid"   // files of cluster.manifests are not served
	MemoryLow          Reason = "MemoryLow"          // the container's limit is too low
	NoFallback         Reason = "NoFallback"         // without the agent, queries time out
	NoUpstream         Reason = "NoUpstream"         // a route has no upstream
	NotIntercepted     Reason = "NotIntercepted"     // queries do not reach the agent
	ObjectsInvalid     Reason = "ObjectsInvalid"     // objects of the cluster are not served in full
	ObjectsRefused     Reason = "ObjectsRefused"     // a namespace has too many objects
	ObjectsStale       Reason = "ObjectsStale"       // objects of the cluster are not confirmed fresh
	Panicked           Reason = "Panicked"           // a panic was recovered
	PodsUnknown        Reason = "PodsUnknown"        // the pods of the node are not confirmed fresh
	ProbeFails         Reason = "ProbeFails"         // a configured probe gets no good answer
	RequiredNameFails  Reason = "RequiredNameFails"  // a new configuration, or a new agent, waits until its requiredNames resolve
	RouteDown          Reason = "RouteDown"          // no upstream of a route gives good answers
	RulesWrong         Reason = "RulesWrong"         // the interception rules are not in place
	SnapshotFails      Reason = "SnapshotFails"      // the next start is cold
	Standby            Reason = "Standby"            // the fallback answers, as configured
	TakenOver          Reason = "TakenOver"          // a newer agent runs on this node
	UpstreamDown       Reason = "UpstreamDown"       // an upstream does not answer
	UpstreamErrors     Reason = "UpstreamErrors"     // an upstream answers with errors only
	UpstreamLimited    Reason = "UpstreamLimited"    // an upstream lacks a feature, which the agent works around
	UpstreamLooped     Reason = "UpstreamLooped"     // an upstream sends queries back to the agent
)

// IsNotice reports whether there is nothing to fix: the agent copes, and the operator may want to know.
func (r Reason) IsNotice() bool { return r == UpstreamLimited }

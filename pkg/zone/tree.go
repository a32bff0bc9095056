// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"sort"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Labels of zonal names: <topology zone>.<directive>._zone.<service>.
const (
	labelZone   = "_zone"
	labelPin    = "pin"    // only endpoints of the zone
	labelPrefer = "prefer" // all endpoints, if the zone has none
)

// Number of labels left of the domain, in the tree of svc.
const (
	depthTree      = 1 // svc
	depthNamespace = 2
	depthService   = 3
)

// serviceTree answers a name at or below svc, or returns the target if it is an alias.
func (r *reply) serviceTree() (alias string, res Result) {
	if r.labels == depthTree {
		return "", r.nodata(needsNothing)
	}
	if len(r.z.federations) > 0 && r.labels == depthService+1 {
		if suffix, ok := r.z.federations[string(r.label(2))]; ok {
			return r.federated(suffix)
		}
	}
	if res, ok := r.hidden(); ok {
		return "", res
	}
	if r.labels == depthNamespace {
		return "", r.namespaceName()
	}
	first := r.labels - depthService // index of the service's label, and the number of labels left of it
	if !r.possible(first) {
		return "", r.nxdomain(needsNothing)
	}
	n, _ := r.z.cfg.Store.findNode(r.labelRange(first, r.labels-depthTree))
	if n == nil || n.svc == nil {
		return "", r.nxdomain(needsServices)
	}
	return r.service(n)
}

// service answers a name at or below the service of the node, or returns the target if it is an alias.
func (r *reply) service(n *node) (alias string, res Result) {
	return r.ofService(n, r.labels-depthService)
}

// ofService is service for a name that many labels left of the service's.
func (r *reply) ofService(n *node, left int) (alias string, res Result) {
	if n.partial {
		return "", r.answerUnknown()
	}
	r.ttl = r.ttlOf(n.svc)
	if r.z.cfg.External {
		return r.externalService(n)
	}
	switch n.svc.typ {
	case ExternalName:
		if alias = n.svc.inside(); left > 0 || alias == "" {
			return "", r.nxdomain(needsServices)
		}
		return alias, res
	case Unselected:
		if r.lacksSlices(n) {
			return "", r.answerUnknown()
		}
		return "", r.headless(n, left)
	case Headless:
		return "", r.headless(n, left)
	case ClusterIP:
	}
	return "", r.clusterIP(n, left)
}

// lacksSlices reports whether the store may lack slices of the headless service.
func (r *reply) lacksSlices(n *node) bool {
	return n.svc.typ == Unselected && r.z.cfg.LabelledSlices && (r.z.cfg.HasFallback() || !n.hasPublished())
}

// hidden denies the names of a namespace that is not exposed.
func (r *reply) hidden() (Result, bool) {
	if ok, on := r.z.exposes(r.labelRange(r.labels-depthNamespace, r.labels-depthTree)); !ok {
		return r.nxdomain(on), true
	}
	return Result{}, false
}

// namespaceName answers <namespace>.svc and <namespace>.pod, which have no data.
func (r *reply) namespaceName() Result {
	if !r.z.hasNamespace(r.labelRange(0, 1)) {
		return r.nxdomain(needsNamespaces)
	}
	return r.nodata(needsNothing)
}

// possible reports whether any service could have a name with that many labels to its left.
func (r *reply) possible(left int) bool {
	switch left {
	case 0, 1:
		return true
	case 2:
		_, ok := protocolOf(r.label(1))
		return ok || r.namesCluster(left) || r.zonalNode(left)
	}
	return r.zonalNode(left)
}

// zonalNode reports whether the labels left of the service are those of a zonal name or of a node above one.
func (r *reply) zonalNode(left int) bool {
	if left == 0 || r.z.cfg.External || r.z.inSet() || string(r.label(left-1)) != labelZone {
		return false
	}
	if left == 1 {
		return true
	}
	directive := string(r.label(left - 2))
	return directive == labelPin || directive == labelPrefer
}

// clusterIP answers a name of a ClusterIP service.
func (r *reply) clusterIP(n *node, left int) Result {
	if r.z.cfg.IgnoreEmpty && !n.hasPublished() && r.freshnessOf(needsSlices) != unwatched {
		return r.nxdomain(needsEndpoints)
	}
	filter, ok := r.portFilter(left)
	switch {
	case left == 1:
		return r.belowClusterIP(n)
	case !ok, r.namesCluster(left):
		return r.nxdomain(needsServices) // a zonal name, or that of an endpoint
	case left == 2 && filter.count(n.svc.ports()) == 0:
		return r.nxdomain(needsServices)
	}
	return r.serviceSet(n.svc, "", left, &filter)
}

// serviceSet answers with the addresses of the service, or with its ports: those of the host if there is one. The name has
// that many labels left of the service.
func (r *reply) serviceSet(svc *service, host string, left int, filter *portFilter) Result {
	before := r.answer
	if addrLen := addrLenOf(r.q.Type); addrLen != 0 {
		r.appendRotated(svc.addrs(addrLen), addrLen, r.ttl)
	} else if r.q.Type == wire.TypeSRV {
		r.appendServiceSRV(svc, host, left, filter)
	}
	if r.answer == before && !r.truncated() {
		return r.nodata(needsNothing)
	}
	return r.positive(needsServices)
}

// portFilter returns the filter for a name with that many labels left of the service: all ports, or those of
// _port._proto. It reports false for other names.
func (r *reply) portFilter(left int) (portFilter, bool) {
	switch left {
	case 0:
		return portFilter{}, true
	case 2:
		protocol, ok := protocolOf(r.label(1))
		return portFilter{byName: true, name: portName(r.label(0)), protocol: protocol}, ok
	}
	return portFilter{}, false
}

// belowClusterIP answers the names of endpoints of a ClusterIP service. The store may not have its slices.
func (r *reply) belowClusterIP(n *node) Result {
	if !r.z.inSet() {
		if res, ok := r.endpoint(n); ok {
			return res
		}
	}
	if p, ok := protocolOf(r.label(0)); ok && n.svc.ports().protocols()>>p&1 != 0 {
		return r.nodata(needsNothing)
	}
	switch {
	case r.z.inSet():
		return r.nxdomain(needsServices)
	case !r.z.cfg.AllSlices:
		return r.denyUnlessFallback(needsServices)
	}
	return r.nxdomain(needsEndpoints)
}

// endpoint answers the name of an endpoint in the store.
func (r *reply) endpoint(n *node) (Result, bool) {
	sel, left := r.selectAll(n).withLabel(r.label(0)), 1
	if r.z.inSet() {
		sel.cluster, left = r.labelRange(1, 2), 2
	}
	if !sel.notEmpty() {
		return Result{}, false
	}
	return r.set(&sel, left), true
}

// headless answers a name of a headless service.
func (r *reply) headless(n *node, left int) Result {
	switch {
	case r.namesCluster(left):
		if res, ok := r.endpoint(n); ok {
			return res
		}
		return r.nxdomain(needsEndpoints)
	case left == 1:
		return r.belowHeadless(n)
	}
	filter, ok := r.portFilter(left)
	if !ok {
		return r.zonal(n, left)
	}
	sel := r.selectAll(n)
	sel.ports = filter
	if !r.complete(needsSlices) || !sel.notEmpty() { // a partial set is not an answer
		return r.nxdomain(needsEndpoints)
	}
	return r.set(&sel, left)
}

// belowHeadless answers a name one label below a headless service.
func (r *reply) belowHeadless(n *node) Result {
	if r.z.inSet() {
		if r.clusterNode(n) {
			return r.nodata(needsNothing)
		}
	} else if res, ok := r.endpoint(n); ok {
		return res
	}
	if r.zonalNode(1) {
		return r.zonalEmpty()
	}
	if p, ok := protocolOf(r.label(0)); ok && n.hasProtocol(p) {
		return r.nodata(needsNothing)
	}
	return r.nxdomain(needsEndpoints)
}

// zonal answers a zonal name, or a node above one, of a headless service.
func (r *reply) zonal(n *node, left int) Result {
	if left == 2 {
		return r.zonalEmpty()
	}
	if !r.complete(needsSlices) {
		return r.nxdomain(needsEndpoints)
	}
	sel := r.selectAll(n)
	sel.zone = r.labelRange(0, left-2)
	if !sel.notEmpty() && string(r.label(left-2)) == labelPrefer {
		sel.zone = nil
	}
	if !sel.notEmpty() {
		return r.nodata(needsEndpoints)
	}
	return r.set(&sel, left)
}

// zonalEmpty answers for a node above zonal names. Every headless service has such names if slices are watched.
func (r *reply) zonalEmpty() Result {
	if r.freshnessOf(needsSlices) == unwatched {
		return r.nxdomain(needsEndpoints)
	}
	return r.nodata(needsNothing)
}

// selectAll selects all published endpoints of the node.
func (r *reply) selectAll(n *node) selection {
	return selection{r: r, node: n, rotation: r.rotation, portCount: -1}
}

// set answers with the selected endpoints, of which there is at least one. The name has that many labels left of the service.
func (r *reply) set(sel *selection, left int) Result {
	before := r.answer
	addrLen := addrLenOf(r.q.Type)
	switch {
	case addrLen != 0:
		r.appendEndpoints(sel, addrLen)
	case r.q.Type == wire.TypeSRV:
		r.appendEndpointSRV(sel, left)
	default:
		return r.nodata(needsNothing)
	}
	if r.answer == before && !r.truncated() {
		return r.nodata(needsEndpoints)
	}
	return r.positive(needsEndpoints)
}

// podTree answers a name at or below pod.
func (r *reply) podTree() Result {
	if r.labels == depthTree {
		return r.nodata(needsNothing)
	}
	if r.z.cfg.Pods == PodsDisabled {
		return r.nxdomain(needsNothing)
	}
	if res, ok := r.hidden(); ok {
		return res
	}
	switch r.labels {
	case depthNamespace:
		return r.namespaceName()
	case depthService:
		return r.podName()
	}
	return r.nxdomain(needsNothing)
}

// podName answers <address>.<namespace>.pod.
func (r *reply) podName() Result {
	var buf [16]byte
	addr := parseDashed(r.label(0), &buf)
	if addr == nil {
		return r.nxdomain(needsNothing)
	}
	if r.z.cfg.Pods == PodsVerified {
		if !r.z.cfg.Store.hasPod(r.label(1), addr) {
			return r.nxdomain(needsPods)
		}
	} else if n, _ := r.z.cfg.Store.findNamespace(r.labelRange(1, 2)); !n.exists() {
		return r.nxdomain(needsNamespaces)
	}
	if addrLenOf(r.q.Type) != len(addr) {
		return r.nodata(needsNothing)
	}
	r.appendAddress(r.at, string(addr), r.z.ttl)
	r.answer++
	if r.z.cfg.Pods == PodsVerified {
		return r.positive(needsPods)
	}
	return r.positive(needsNamespaces)
}

// A pod is a Pod object, packed. It is immutable.
type pod struct {
	namespace string // label
	name      string
	data      string // IPv4 addresses, IPv6 addresses
	n4        int
}

func packPod(p Pod) *pod {
	v4, v6 := packAddrs(p.Addrs)
	return &pod{namespace: p.Namespace, name: p.Name, data: string(append(v4, v6...)), n4: len(v4) / 4}
}

// addrs returns the packed addresses of addrLen bytes each.
func (p *pod) addrs(addrLen int) string {
	if addrLen == 4 {
		return p.data[:4*p.n4]
	}
	return p.data[4*p.n4:]
}

// containsAddr reports whether addr is one of the packed addresses, which are sorted.
func containsAddr(list string, addr []byte) bool {
	n := len(addr)
	at := n * sort.Search(len(list)/n, func(i int) bool { return list[i*n:(i+1)*n] >= string(addr) })
	return at < len(list) && list[at:at+n] == string(addr)
}

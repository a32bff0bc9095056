// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What a container of the agent asks for, as in daemonset/base.
const (
	AgentMemory      = "64Mi"  // its request
	AgentMemoryLimit = "144Mi" // its limit
)

// checkPodSecurity checks the labels of the agents' namespace.
func (c *checker) checkPodSecurity() {
	const key = "pod-security.kubernetes.io/enforce"
	label := "`kubectl label --overwrite namespace " + c.Namespace + " " + key + "=privileged`"
	switch {
	case !c.reads(GetNamespace):
		return
	case c.AgentNamespace == nil:
		c.add("pod security", Unknown, "namespace "+c.Namespace+" does not exist", "create it; its level must be privileged: "+label)
		return
	}
	switch level, has := c.AgentNamespace.Labels[key]; {
	case has && level != "privileged":
		c.add("pod security", Fail, "namespace "+c.Namespace+" enforces "+level, label)
	case !has && c.Namespace != "kube-system":
		c.add("pod security", Unknown, "namespace "+c.Namespace+" has no level: that of the API server applies", label)
	default:
		c.add("pod security", OK, "namespace "+c.Namespace+" allows privileged pods", "")
	}
}

// checkQuotas checks what may refuse the agents' pods.
func (c *checker) checkQuotas() {
	for i := range c.Quotas {
		if q := &c.Quotas[i]; appliesToAgents(q) {
			c.checkQuota(q)
		}
	}
	for i := range c.Limits {
		for _, item := range c.Limits[i].Spec.Limits {
			most, has := item.Max[corev1.ResourceMemory]
			if has && most.Cmp(resource.MustParse(AgentMemoryLimit)) < 0 && item.Type != corev1.LimitTypePersistentVolumeClaim {
				c.add("quotas", Fail, fmt.Sprintf("LimitRange %s allows %s memory, and the agents' limit is %s", c.Limits[i].Name, most.String(), AgentMemoryLimit), "raise it, or use another namespace")
			}
			if _, has := item.Default[corev1.ResourceCPU]; has {
				c.add("quotas", Warn, "LimitRange "+c.Limits[i].Name+" gives the agents a CPU limit", "it delays all DNS of a node: use another namespace")
			}
		}
	}
}

func (c *checker) checkQuota(q *corev1.ResourceQuota) {
	nodes := int64(len(c.Linux()))
	memory, limit := resource.MustParse(AgentMemory), resource.MustParse(AgentMemoryLimit)
	for _, r := range []struct {
		name  corev1.ResourceName
		needs int64
	}{
		{corev1.ResourcePods, nodes},
		{corev1.ResourceRequestsMemory, nodes * memory.Value()},
		{corev1.ResourceMemory, nodes * memory.Value()},
		{corev1.ResourceLimitsMemory, nodes * limit.Value()},
	} {
		hard, has := q.Status.Hard[r.name]
		used := q.Status.Used[r.name]
		if free := hard.Value() - used.Value(); has && free < r.needs {
			c.add("quotas", Fail, fmt.Sprintf("ResourceQuota %s leaves %d of %s, and the agents of %d nodes need %d", q.Name, free, r.name, nodes, r.needs), "raise it, or use another namespace")
		}
	}
	if _, has := q.Status.Hard[corev1.ResourceLimitsCPU]; has {
		c.add("quotas", Fail, "ResourceQuota "+q.Name+" refuses pods without a CPU limit, which the agents do not have", "use another namespace: a CPU limit delays all DNS of a node")
	}
}

// appliesToAgents reports whether a quota counts pods of the priority class system-node-critical that run without an end.
func appliesToAgents(q *corev1.ResourceQuota) bool {
	var scopes []corev1.ScopedResourceSelectorRequirement
	for _, s := range q.Spec.Scopes {
		scopes = append(scopes, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists})
	}
	if q.Spec.ScopeSelector != nil {
		scopes = append(scopes, q.Spec.ScopeSelector.MatchExpressions...)
	}
	return !slices.ContainsFunc(scopes, func(s corev1.ScopedResourceSelectorRequirement) bool {
		named := slices.Contains(s.Values, "system-node-critical")
		switch s.ScopeName {
		case corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeNotBestEffort:
			return false
		case corev1.ResourceQuotaScopePriorityClass:
			return s.Operator == corev1.ScopeSelectorOpDoesNotExist || s.Operator == corev1.ScopeSelectorOpIn && !named || s.Operator == corev1.ScopeSelectorOpNotIn && named
		default: // those of other pods
			return true
		}
	})
}

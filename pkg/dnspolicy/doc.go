// SPDX-License-Identifier: Apache-2.0

// Package dnspolicy names the pods that network policies would deny DNS, once they send their queries to the agents.
//
// It knows three kinds of engines: those that match addresses, as kube-router does, Cilium, and Calico. What it cannot decide it says
// with the name of the policy. It reads nothing itself.
package dnspolicy

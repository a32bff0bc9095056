// SPDX-License-Identifier: Apache-2.0

// Package kernelhits answers queries of pods in the kernel: a BPF program on the host end of each pod's veth answers the most
// frequent questions, and leaves every other packet untouched to the agent.
//
// The agent writes the answers. It takes each from its own resolver, see [Source], so both give the same bytes. An answer
// names two versions: that of its name in the cache, and that of an object of the cluster or of all objects. A change
// increments a version, with one store to memory that the kernel shares, before the new answer is published. So the kernel
// never gives an outdated answer.
//
// The cache reports changes through [cache.Cache.Observe]: a name, or an object of the cluster (owner). Nil (a new configuration) ends
// all answers. For the zones this is not enough: a denial depends on all objects, and an owner is reported only after readers see its
// change. So [Responder.ZoneChanging] is called before a change, and [Responder.ZoneChanged] after it, see [zone.Observer].
//
// The kernel answers only a pod that the agent has answered recently. A program at the egress of the pod's interface sees the
// agent's reply, which proves that the node's rules and policies let the query pass.
//
// ADR 18 has the reasons.
package kernelhits

//go:generate go tool bpf2go -cc clang -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu" -target bpfel -type key -type answer -type client_key -type client -type holder -type destination -type address -type control -type name_key -no-global-types hits bpf/hits.c

// SPDX-License-Identifier: Apache-2.0

// Package kernelhits answers queries of pods in the kernel: a BPF program on the host end of each pod's veth answers the most
// frequent questions, and leaves every other packet untouched to the agent.
//
// The agent writes the answers. It takes each from its own resolver, see [Source], so both give the same bytes. An answer
// names two versions: that of its name in the cache, and that of an object of the cluster or of all objects. A change
// increments a version, with one store to memory that the kernel shares, before the new answer is published. So the kernel
// never gives an outdated answer.
//
// The cache says what has changed: [cache.Cache.Observe] names the answer or the owner, or nothing, which ends all answers, as
// another configuration does. For the zones that is not enough. A denial depends on all objects, and an owner is named only after
// readers see its change. So [Responder.ZoneChanging] comes before that, and [Responder.ZoneChanged] at the end, see [zone.Observer].
//
// The kernel answers only a pod that the agent has answered recently. A program at the egress of the pod's interface sees the
// agent's reply, which proves that the node's rules and policies let the query pass.
//
// ADR 18 has the reasons.
package kernelhits

//go:generate go tool bpf2go -cc clang -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu" -target bpfel -type key -type answer -type client_key -type client -type holder -type destination -type address -type control -no-global-types hits bpf/hits.c

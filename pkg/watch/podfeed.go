// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/retry"
)

// A PodSource selects where the pods of the node come from.
type PodSource uint8

// Values of PodSource.
const (
	PodsFromServer  PodSource = iota // the API server
	PodsFromKubelet                  // the kubelet's Pods API
	PodsFromEither                   // the kubelet, and the API server while the kubelet's pods are not available
)

// Values of Stats.PodSource.
const (
	SourceServer  = "API server"
	SourceKubelet = "kubelet"
)

const (
	// The pauses between failed calls. The last one is short: a restarted kubelet may end pods at once, and other pods then
	// get their addresses. An attempt costs little, since the socket is on this node.
	firstCallPause = 200 * time.Millisecond
	lastCallPause  = time.Second
)

// maxNodePods bounds the pods of the node. By default, a kubelet runs at most 110, and ended pods do not count.
const maxNodePods = 2048

var (
	errNoPodList = errors.New("the kubelet did not send all pods in time")
	errManyPods  = errors.New("the kubelet sent more than 2,048 pods")
)

// A podFeed passes the node's pods from the kubelet to an index. Each call of the kubelet begins with all pods, which
// replace those of the index, and confirms the state as of its begin. A call ends when a confirmation is due, and the next
// one begins: the kubelet sends nothing to show that a silent call works, and no event for a change of labels only.
type podFeed struct {
	*feed  // has the status; its watch of the API server runs with PodsFromEither only
	index  *pods.Index
	node   string // empty: the pods of any node
	either bool   // PodsFromEither is set

	dial      dialer
	endServer func()       // ends the watch of the API server, and waits; nil: it does not run
	source    atomic.Value // a string as in Stats.PodSource; nil before the first list
}

// run passes pods until ctx ends.
func (f *podFeed) run(ctx context.Context) {
	pause := retry.Backoff{First: firstCallPause, Last: lastCallPause}
	for ctx.Err() == nil {
		pause.Begin()
		err := f.guard.Do(ctx, func() error { return f.call(ctx) })
		if err == nil {
			continue
		}
		f.lost(ctx, err)
		_ = retry.Sleep(ctx, pause.Next())
	}
	if f.endServer != nil {
		f.endServer()
	}
}

// call passes the pods of one call. It returns nil once a confirmation is due.
func (f *podFeed) call(ctx context.Context) error {
	began := f.now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := time.AfterFunc(f.confirmTimeout, cancel)
	defer limit.Stop()
	s, err := openPodStream(ctx, f.dial)
	if err == nil {
		defer func() {
			cancel() // else Close waits for the kubelet
			_ = s.resp.Body.Close()
		}()
		err = f.list(ctx, s)
	}
	if err != nil {
		if ctx.Err() != nil {
			return errNoPodList
		}
		return err
	}
	limit.Reset(f.confirmAfter)
	f.begun() // only now: the watch of the API server, which has the same feed, has ended
	f.confirmed(ctx, began)
	for err == nil {
		err = f.change(s)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// list receives all pods and passes them to the index, or none if the list is incomplete.
func (f *podFeed) list(ctx context.Context, s *podStream) error {
	all := map[types.NamespacedName]*pods.Pod{}
	for {
		event, pod, err := s.next()
		switch {
		case err != nil:
			return err
		case event == podAdded:
			if record := ownPodOf(pod, f.node); record != nil {
				all[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = record
			}
		case event == podsListed:
			if f.endServer != nil {
				f.endServer()
				f.endServer = nil
			}
			f.setSource(ctx, SourceKubelet)
			f.replace(all)
			return nil
		}
		if len(all) > maxNodePods {
			return errManyPods
		}
	}
}

// replace makes the index have these pods only.
func (f *podFeed) replace(all map[types.NamespacedName]*pods.Pod) {
	f.index.Retain(func(namespace, name string) bool {
		return all[types.NamespacedName{Namespace: namespace, Name: name}] != nil
	})
	for _, record := range all {
		f.index.Put(record)
	}
	f.status.events.Add(uint64(len(all)))
}

// change receives one event after the list and passes it.
func (f *podFeed) change(s *podStream) error {
	event, pod, err := s.next()
	if err != nil {
		return err
	}
	switch event {
	case podAdded, podModified:
		if record := ownPodOf(pod, f.node); record == nil {
			f.index.Delete(pod.Namespace, pod.Name)
		} else if f.index.Put(record) && f.index.Stats(f.now()).Pods > maxNodePods {
			return errManyPods
		}
	case podDeleted:
		f.index.Delete(pod.Namespace, pod.Name)
	}
	f.status.events.Add(1)
	return nil
}

// lost records that a call failed. If the index is stale and PodsFromEither is set, the pods come from the API server from then on.
func (f *podFeed) lost(ctx context.Context, err error) {
	if f.endServer != nil {
		return
	}
	f.failed(ctx, err)
	if !f.either || !f.index.IsStale(f.now()) {
		return
	}
	f.setSource(ctx, SourceServer)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { f.feed.run(ctx) })
	f.endServer = func() {
		cancel()
		wg.Wait()
	}
}

// setSource records and logs where the pods come from.
func (f *podFeed) setSource(ctx context.Context, source string) {
	if f.source.Swap(source) != source {
		f.log.InfoContext(ctx, "pods of the node watched", "source", source)
	}
}

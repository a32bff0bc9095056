// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/nodecache/node-cache/internal/assert"
)

// An apiServer serves the agents' DaemonSet, its pods, and exec over WebSockets.
type apiServer struct {
	daemonSet func() *appsv1.DaemonSet
	pods      []corev1.Pod
	// run runs a command in a pod. A program that returns a negative code has ended the connection itself.
	run func(pod, command string, stdout, stderr, status io.Writer) (code int)
	// relay runs a command that has a standard input.
	relay func(pod string, stdin io.Reader, stdout, stderr, status io.Writer) (code int)
	// namespaces have the label that opts in, and optedPods are their pods, and others. Nil: the user may not list them.
	namespaces []string
	optedPods  []corev1.Pod
	policy     bool // the MutatingAdmissionPolicy exists

	t         *testing.T
	mu        sync.Mutex // guards the fields below
	config    string     // the configuration in the ConfigMap node-cache
	conflicts int        // updates of it that fail first
	off       string     // the key standby of the ConfigMap node-cache-standby; empty: there is none
}

// standby returns the key of the ConfigMap node-cache-standby, empty if there is none.
func (s *apiServer) standby() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.off
}

// serveStandby creates, updates and deletes the ConfigMap node-cache-standby.
func (s *apiServer) serveStandby(t *testing.T, w http.ResponseWriter, r *http.Request) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	code, reason := http.StatusOK, metav1.StatusReason("")
	switch {
	case r.Method == http.MethodPost && s.off != "":
		code, reason = http.StatusConflict, metav1.StatusReasonAlreadyExists
	case r.Method == http.MethodDelete && s.off == "":
		code, reason = http.StatusNotFound, metav1.StatusReasonNotFound
	case r.Method == http.MethodDelete:
		s.off = ""
	default:
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		var m corev1.ConfigMap
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &m)
		assert.NoError(t, err)
		assert.Equal(t, "name", "node-cache-standby", m.Name)
		s.off = m.Data["standby"]
		send(t, w, corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}})
		return
	}
	w.WriteHeader(code)
	send(t, w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code)})
}

// configuration returns the configuration in the ConfigMap.
func (s *apiServer) configuration() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config
}

// start starts the server and returns the flag for a kubeconfig of it.
func (s *apiServer) start(t *testing.T) string {
	t.Helper()
	s.t = t
	const api = "/api/v1/namespaces/kube-system/pods"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/apps/v1/namespaces/kube-system/daemonsets/node-cache", func(w http.ResponseWriter, _ *http.Request) {
		send(t, w, s.daemonSet())
	})
	mux.HandleFunc("GET "+api, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "label selector", "app=node-cache", r.URL.Query().Get("labelSelector"))
		send(t, w, corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: s.pods})
	})
	mux.HandleFunc("GET "+api+"/{pod}/exec", s.exec)
	mux.HandleFunc("/api/v1/namespaces/kube-system/configmaps/node-cache", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.Method == http.MethodPut {
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			var m corev1.ConfigMap
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &m) // client-go writes protobuf
			assert.NoError(t, err)
			if s.conflicts--; s.conflicts >= 0 {
				w.WriteHeader(http.StatusConflict)
				send(t, w, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict})
				return
			}
			s.config = m.Data[configKey]
		}
		m := corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, Data: map[string]string{configKey: s.config}}
		m.Name = "node-cache"
		send(t, w, m)
	})
	mux.HandleFunc("GET /api/v1/namespaces", func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "label selector", optInLabel+"=on", r.URL.Query().Get("labelSelector"))
		if s.namespaces == nil {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		list := corev1.NamespaceList{TypeMeta: metav1.TypeMeta{Kind: "NamespaceList", APIVersion: "v1"}}
		for _, name := range s.namespaces {
			list.Items = append(list.Items, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		send(t, w, list)
	})
	opted := func(w http.ResponseWriter, r *http.Request) {
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		for _, p := range s.optedPods {
			node := r.URL.Query().Get("fieldSelector")
			if name := r.PathValue("namespace"); (p.Namespace == name || name == "" && p.Labels[optInLabel] == "on") && (node == "" || node == "spec.nodeName="+p.Spec.NodeName) {
				list.Items = append(list.Items, p)
			}
		}
		send(t, w, list)
	}
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", opted)
	mux.HandleFunc("GET /api/v1/pods", opted)
	mux.HandleFunc("GET /apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/"+optInPolicy, func(w http.ResponseWriter, _ *http.Request) {
		if !s.policy {
			w.WriteHeader(http.StatusNotFound)
			send(t, w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
			return
		}
		send(t, w, admissionv1.MutatingAdmissionPolicy{TypeMeta: metav1.TypeMeta{Kind: "MutatingAdmissionPolicy", APIVersion: "admissionregistration.k8s.io/v1"}})
	})
	for _, pattern := range []string{"POST /api/v1/namespaces/kube-system/configmaps", "/api/v1/namespaces/kube-system/configmaps/node-cache-standby"} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serveStandby(t, w, r) })
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: %s}}]\n", server.URL)
	assert.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return "--kubeconfig=" + file
}

func send(t *testing.T, w http.ResponseWriter, object any) {
	t.Helper()
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(object); err != nil {
		t.Error(err)
	}
}

// exec runs a command, as the API server and the kubelet do.
func (s *apiServer) exec(w http.ResponseWriter, r *http.Request) {
	run, reads := s.run, wsstream.IgnoreChannel
	if r.URL.Query().Get("stdin") == "true" {
		run, reads = nil, wsstream.ReadChannel
	}
	if run == nil && s.relay == nil {
		refusal := metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Message: "you may not", Code: http.StatusForbidden}
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(refusal)
		return
	}
	const none, writes = wsstream.IgnoreChannel, wsstream.WriteChannel
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: []wsstream.ChannelType{reads, writes, writes, writes, none}},
	})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	command := strings.Join(r.URL.Query()["command"], " ")
	status, code := metav1.Status{Status: metav1.StatusSuccess}, 0
	if run != nil {
		code = run(r.PathValue("pod"), command, streams[1], streams[2], streams[3])
	} else {
		assert.Equal(s.t, "command", "/node-cache relay", command)
		code = s.relay(r.PathValue("pod"), streams[0], streams[1], streams[2], streams[3])
	}
	if code != 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}},
		}}
	}
	_ = json.NewEncoder(streams[3]).Encode(status)
}

// daemonSet returns a function for a DaemonSet that wants a number of agents.
func daemonSet(desired int32) func() *appsv1.DaemonSet {
	return func() *appsv1.DaemonSet {
		return &appsv1.DaemonSet{
			TypeMeta:   metav1.TypeMeta{Kind: "DaemonSet", APIVersion: "apps/v1"},
			ObjectMeta: metav1.ObjectMeta{Name: agentName, Namespace: "kube-system", UID: "1"},
			Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "node-cache"}}},
			Status:     appsv1.DaemonSetStatus{DesiredNumberScheduled: desired},
		}
	}
}

// agentPod is a ready agent. Its age is in hours.
func agentPod(name, node string, age int) corev1.Pod {
	created := metav1.NewTime(time.Unix(1_800_000_000, 0).Add(time.Duration(-age) * time.Hour))
	p := corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
	p.Name, p.CreationTimestamp = name, created
	p.OwnerReferences = []metav1.OwnerReference{{UID: "1", Controller: new(true)}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return p
}

// result is what a command line did.
type result struct {
	Code           int
	Stdout, Stderr string
}

func command(args ...string) result {
	var stdout, stderr bytes.Buffer
	code := run(args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// Command peer answers allocation cases with upstream's own allocator, to compare with and to measure against.
//
// It reads one case per line from standard input and writes one answer per line to standard output, both JSON.
// The input of a case has the form of the suite that is exported from the allocator's own tests: claimsToAllocate,
// classes, slices, node, allocatedDevices, allocatedSharedDeviceIDs and aggregatedCapacity.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
)

// request is one line of input.
type request struct {
	Features structured.Features `json:"features"`
	Input    input               `json:"input"`
	// Runs is how often to answer; every run makes a new allocator. At least one.
	Runs int `json:"runs"`
	// TimeoutSeconds limits each Allocate call, as the scheduler's filter time-out does; 0 is no limit.
	TimeoutSeconds float64 `json:"timeoutSeconds"`
}

type input struct {
	Claims  []*resourceapi.ResourceClaim `json:"claimsToAllocate"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	Node    *v1.Node                     `json:"node"`
	// Nodes, when given, are tried one after the other until one does, as a scheduler may have to.
	Nodes              []*v1.Node `json:"nodes"`
	AllocatedDevices   []device   `json:"allocatedDevices"`
	AllocatedShares    []share    `json:"allocatedSharedDeviceIDs"`
	AggregatedCapacity []consumed `json:"aggregatedCapacity"`
}

type device struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

type share struct {
	device
	ShareID types.UID `json:"shareID"`
}

type consumed struct {
	device
	Capacity map[resourceapi.QualifiedName]resource.Quantity `json:"consumedCapacity"`
}

// answer is one line of output.
type answer struct {
	// Outcome is allocated, not-allocated, error, or timeout.
	Outcome string                         `json:"outcome"`
	Results []resourceapi.AllocationResult `json:"results,omitempty"`
	Error   string                         `json:"error,omitempty"`
	// ErrorIsNodeLocal tells errors that concern only this node from those that end the scheduling attempt.
	ErrorIsNodeLocal bool `json:"errorIsNodeLocal,omitempty"`
	// NewAllocatorNanoseconds and AllocateNanoseconds have an entry for each run, all nodes together.
	NewAllocatorNanoseconds []int64 `json:"newAllocatorNanoseconds,omitempty"`
	AllocateNanoseconds     []int64 `json:"allocateNanoseconds,omitempty"`
	// Malformed says why the line was no case; nothing ran.
	Malformed string `json:"malformed,omitempty"`
}

func main() {
	allocators := flag.String("allocators", "incubating,experimental",
		"implementations to choose from; the first whose features cover those of the case answers")
	flag.Parse()
	structured.EnableAllocators(strings.Split(*allocators, ",")...)
	// Upstream logs through the context; nothing may go to standard output but answers.
	klog.SetOutput(io.Discard)
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func serve(in io.Reader, out io.Writer) error {
	lines := bufio.NewReaderSize(in, 1<<20)
	buffered := bufio.NewWriter(out)
	encoder := json.NewEncoder(buffered)
	caches := map[cel.Features]*cel.Cache{}
	for {
		line, err := lines.ReadBytes('\n')
		if len(strings.TrimSpace(string(line))) > 0 {
			if err := encoder.Encode(reply(line, caches)); err != nil {
				return err
			}
			if err := buffered.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func reply(line []byte, caches map[cel.Features]*cel.Cache) answer {
	var asked request
	if err := json.Unmarshal(line, &asked); err != nil {
		return answer{Malformed: err.Error()}
	}
	if asked.Input.Node != nil {
		asked.Input.Nodes = append(asked.Input.Nodes, asked.Input.Node)
	}
	if len(asked.Input.Nodes) == 0 {
		return answer{Malformed: "no node"}
	}
	environment := cel.Features{
		EnableConsumableCapacity: asked.Features.ConsumableCapacity,
		EnableListTypeAttributes: asked.Features.ListTypeAttributes,
	}
	cache, found := caches[environment]
	if !found {
		// As the scheduler does, compiled expressions are kept from one call to the next.
		cache = cel.NewCache(1000, environment)
		caches[environment] = cache
	}
	var told answer
	for run := 0; run < max(1, asked.Runs); run++ {
		once := allocate(&asked, cache)
		once.NewAllocatorNanoseconds = append(told.NewAllocatorNanoseconds, once.NewAllocatorNanoseconds...)
		once.AllocateNanoseconds = append(told.AllocateNanoseconds, once.AllocateNanoseconds...)
		told = once
		if told.Outcome == "timeout" {
			break
		}
	}
	return told
}

func allocate(asked *request, cache *cel.Cache) answer {
	ctx := klog.NewContext(context.Background(), klog.Logger{})
	state := allocatedState(&asked.Input)
	start := time.Now()
	allocator, err := structured.NewAllocator(
		ctx, asked.Features, state, classes(asked.Input.Classes), asked.Input.Slices, cache)
	made := time.Since(start)
	if err != nil {
		return answer{Outcome: "error", Error: err.Error()}
	}
	if asked.TimeoutSeconds > 0 {
		limited, cancel := context.WithTimeout(ctx, time.Duration(asked.TimeoutSeconds*float64(time.Second)))
		defer cancel()
		ctx = limited
	}
	start = time.Now()
	var results []resourceapi.AllocationResult
	for _, node := range asked.Input.Nodes {
		results, err = allocator.Allocate(ctx, node, asked.Input.Claims)
		if results != nil || (err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode)) {
			break
		}
	}
	took := time.Since(start)
	told := answer{
		NewAllocatorNanoseconds: []int64{made.Nanoseconds()},
		AllocateNanoseconds:     []int64{took.Nanoseconds()},
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		told.Outcome, told.Error = "timeout", err.Error()
	case err != nil:
		told.Outcome, told.Error = "error", err.Error()
		told.ErrorIsNodeLocal = errors.Is(err, structured.ErrFailedAllocationOnNode)
	case results == nil || len(asked.Input.Claims) == 0:
		told.Outcome = "not-allocated"
	default:
		told.Outcome, told.Results = "allocated", results
	}
	return told
}

func allocatedState(given *input) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, taken := range given.AllocatedDevices {
		state.AllocatedDevices.Insert(taken.id())
	}
	for _, taken := range given.AllocatedShares {
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(taken.id(), &taken.ShareID))
	}
	for _, taken := range given.AggregatedCapacity {
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(taken.id(), taken.Capacity))
	}
	return state
}

func (d device) id() structured.DeviceID {
	return structured.MakeDeviceID(d.Driver, d.Pool, d.Device)
}

// classes lists the classes of a case.
type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("device class %q not found", name)
}

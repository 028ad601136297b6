#!/usr/bin/env python3
"""A plain model of the rules in docs/reference-rules.md (round robin only), checked against every golden run: model.py [NAME...]
It is here to test the rules, not to be fast or pretty."""
import collections, gzip, heapq, json, pathlib, sys
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
INF = 10**18

class Pool:
    def __init__(s, n): s.n=n; s.copies={}; s.by={}; s.lru=collections.OrderedDict(); s.reserved=0; s.next=0
    def free(s): return s.n-len(s.copies)-s.reserved
    def active(s): return len(s.copies)-len(s.lru)+s.reserved
    def reserve(s, hashes, total):
        hits=[s.by[h][0] for h in hashes]; fresh=total-len(hits); ev=max(0,fresh-s.free())
        if ev>len(s.lru)-len({i for i in hits if i in s.lru}) and ev>0: return None
        for i in hits: s.lru.pop(i,None); s.copies[i][1]+=1
        for _ in range(ev): s.evict()
        s.reserved+=fresh
        return [hits,fresh]
    def evict(s):
        i,_=s.lru.popitem(last=False); h=s.copies.pop(i)[0]; s.by[h].remove(i)
        if not s.by[h]: del s.by[h]
    def private(s, r):
        assert r[1]>0; r[1]-=1; s.reserved-=1; i=s.next; s.next+=1; s.copies[i]=[None,1]; return i
    def cache(s, i, h): s.copies[i][0]=h; s.by.setdefault(h,[]).append(i)
    def release(s, i):
        c=s.copies[i]
        if c[0] is None: del s.copies[i]; return
        c[1]-=1
        if c[1]==0: s.lru[i]=None
    def cancel(s, r): s.reserved-=r[1]; r[1]=0

class Req:
    def __init__(s, rid, tokens, out): s.id=rid; s.prompt=len(tokens); s.tokens=list(tokens); s.out=out; s.gen=0; s.computed=0; s.blocks=[]; s.alloc=0; s.order=0; s.hashes=[]; s.preempted=False
    def len(s): return len(s.tokens)
    def hash(s, k, bs):
        while len(s.hashes)<=k:
            j=len(s.hashes); s.hashes.append(hash_of((s.hashes[j-1] if j else None, tuple(s.tokens[j*bs:(j+1)*bs]))))
        return s.hashes[k]
HASHES={}
def hash_of(x): return HASHES.setdefault(x,len(HASHES))

class Rank:
    def __init__(s, cfg, role, log):
        g=cfg.get; s.bs=g("block_size",64); s.nb=g("num_gpu_blocks",16384); s.budget=cfg.get("max_num_batched_tokens",8192); s.seqs=cfg.get("max_num_seqs",256)
        s.budget=INF if s.budget is None else s.budget; s.seqs=INF if s.seqs is None else s.seqs
        s.caching=g("enable_prefix_caching",True); s.chunk=g("enable_chunked_prefill",True); s.fifo=g("preemption_mode","lifo")=="fifo"; s.maxlen=g("max_model_len"); s.tm=g("timing_model",{"type":"polynomial"})
        s.sp=g("speedup_ratio",1.0) or 1.0; s.dsp=s.sp*(g("decode_speedup_ratio",1.0) or 1.0); s.nextn=g("aic_nextn"); s.interval=g("prefill_schedule_interval",1)
        if s.nextn:
            r=[float(x) for x in g("aic_nextn_accept_rates").split(",")][:s.nextn]; r+=[0.0]*(s.nextn-len(r)); s.accept=1
            for x in r:
                if x==0: break
                s.accept+=1
        s.role=role; s.pool=Pool(s.nb); s.waiting=[]; s.running=[]; s.pending=[]; s.held={}; s.sources={}; s.gen=0; s.attempt={}; s.order=0; s.capbound=False; s.log=log; s.preempts=0
    def ready(s): return bool(s.waiting or s.running)
    def drained(s): return not(s.waiting or s.running or s.pending or s.held or s.sources)
    def remaining(s, q): return min(q.out-q.gen, INF if s.maxlen is None else max(0,s.maxlen-q.len()))
    def complete(s, q): return s.remaining(q)<=0
    def submit(s, q): q.order=s.order; s.order+=1; s.waiting.append(q)
    def prebuilt(s, q): return q.computed>=q.prompt and q.alloc>=q.prompt
    # --- blocks
    def probe(s, q):
        n=0; act=0
        if s.caching:
            while (n+1)*s.bs<=q.len() and q.hash(n,s.bs) in s.pool.by:
                if s.pool.by[q.hash(n,s.bs)][0] not in s.pool.lru: act+=1
                n+=1
        if not s.gen_complete(q):
            n=min(n,(q.len()-1)//s.bs)
            if s.nextn and n>=1: n-=1
        return n, min(act,n)
    def gen_complete(s, q): return q.gen>=q.out
    def allocate(s, q, target, hit):
        prev=-(-q.alloc//s.bs); want=-(-target//s.bs)
        if want<=prev: q.alloc=max(q.alloc,target); return True
        use=max(0,hit-prev)
        r=s.pool.reserve([q.hash(k,s.bs) for k in range(prev,prev+use)],want-prev)
        if r is None: return False
        q.blocks+=r[0]
        while r[1]: q.blocks.append(s.pool.private(r))
        q.alloc=target; return True
    def finalize(s, q, before, after):
        if not s.caching: return
        for k in range(before//s.bs, min(after//s.bs,len(q.blocks))):
            i=q.blocks[k]
            if s.pool.copies[i][0] is None: s.pool.cache(i,q.hash(k,s.bs))
    def drop_blocks(s, q):
        for i in reversed(q.blocks): s.pool.release(i)
        q.blocks=[]; q.alloc=0
    def preempt(s):
        q=s.running.pop(0 if s.fifo else -1); s.drop_blocks(q); q.computed=0; q.preempted=True; s.waiting.insert(0,q); s.gen+=1; s.preempts+=1; return q
    # --- one pass
    def schedule(s, q, st, from_waiting, hit, facts):
        cached=0
        if q.computed==0: cached=(hit if hit is not None else s.probe(q)[0])*s.bs
        eff=q.computed+cached; pb=min(eff,q.prompt); rem=q.len()-eff; prem=q.prompt-pb
        if prem>0 and not s.chunk and prem>st["budget"]: return "blocked"
        want=min(rem,st["budget"])
        if want<=0 and rem>0: return "blocked"
        after=eff+want
        while not s.allocate(q,after,cached//s.bs):
            v=s.preempt(); st["preempted"]=True
            u=st["sched"].pop(v.id,None)
            if u:
                st["budget"]+=u[0]
                if u[1]>0 and s.role!="decode": st["n"]-=1; st["isl"]-=u[2]+u[1]; st["pre"]-=u[2]
            if v is q: return "self"
        q.computed=after; used=after-eff
        s.finalize(q,eff,after)
        pt=min(after,q.prompt)-pb
        st["sched"][q.id]=(used,pt,pb)
        if pt>0 and s.role!="decode": st["n"]+=1; st["isl"]+=pb+pt; st["pre"]+=pb
        if from_waiting:
            s.waiting.remove(q); s.running.append(q); s.log.admit(q.id,s.role,facts["now"],cached)
        st["budget"]-=used
        return used
    def step(s, now, wave, dp):
        st={"budget":s.budget,"sched":{},"n":0,"isl":0,"pre":0,"preempted":False}; f={"now":now}; rejected=[]
        defer=dp>1 and wave%s.interval!=0 and not s.capbound and any(s.prebuilt(q) for q in s.running)
        i=0
        while i<len(s.running) and st["budget"]>0:
            q=s.running[i]
            if defer and not s.prebuilt(q): i+=1; continue
            r=s.schedule(q,st,False,None,f)
            if r=="blocked": break
            if r!="self": i+=1  # by place: with fifo a victim before it makes the loop skip the next sequence in this pass
        has_pending=bool(s.pending)
        while not st["preempted"] and len(s.running)<s.seqs:
            if not s.waiting: break
            if has_pending:
                q=next((x for x in s.waiting if s.prebuilt(x)),None) or s.waiting[0]
            else: q=s.waiting[0]
            if s.maxlen is not None and q.prompt>=s.maxlen: s.waiting.remove(q); rejected.append(q); continue
            built=s.prebuilt(q)
            if not built and has_pending: break
            hit=None; newt=0
            if not built:
                if not q.preempted and -(-q.len()//s.bs)>s.nb: s.waiting.remove(q); rejected.append(q); continue
                hit,act=s.probe(q)
                if -(-q.len()//s.bs)-act>s.nb-s.pool.active(): break
                newt=q.len()-hit*s.bs
            if defer and newt>1: break
            r=s.schedule(q,st,True,hit if not built else 0,f)
            if r in("blocked","self"): break
            if r==0 and st["budget"]==0: break
        if not defer and not st["preempted"]: s.capbound=bool(s.waiting)
        pre=0
        if st["n"]:
            t=st["n"]*(st["isl"]//st["n"]-st["pre"]//st["n"])
            pre=s.tm["prefill_ms"] if s.tm["type"]=="fixed" else (0 if t==0 else 4.209989e-07*t*t+1.518344e-02*t+16.50142)
        pre=round(round(pre*1e6)/s.sp)/1e6
        dec,outs,facts=s.emit(st,now)
        return pre+dec, outs+[(q,None,True,"rejected") for q in rejected], facts, bool(st["sched"] or outs or rejected or st["preempted"])
    def decode_time(s, n, total):
        if n==0 or s.role=="prefill": return 0
        if s.tm["type"]=="fixed": d=s.tm["decode_ms"]
        else:
            p=min(total/(s.nb*s.bs),1.0); d=max(1.0,-25.74*p*p+54.01*p+5.74)
        return round(round(d*1e6)/s.dsp)/1e6
    def finish(s, q, facts):
        s.running.remove(q); s.gen+=1
        if q.id in s.sources: s.sources[q.id]=q; facts.append(("held",q))
        else: s.drop_blocks(q)
    def emit(s, st, now):
        outs=[]; facts=[]; ready=[]
        for q in list(s.running):
            if q.computed<q.len(): continue
            if s.complete(q): s.finish(q,facts); outs.append((q,0,True,"completed")); continue
            ready.append(q)
        if not ready: return 0,outs,facts
        if not s.nextn:
            ds=[q for q in ready if not(s.role=="agg" and q.gen==0 and st["sched"].get(q.id,(0,0))[1]>0)]
            d=s.decode_time(len(ds),sum(q.len() for q in ds))
            for q in ready: s.token(q); done=s.complete(q); outs.append((q,1,done,"completed")); done and s.finish(q,facts)
            return d,outs,facts
        burst=1 if s.role=="prefill" else s.nextn+1
        while True:
            need=sum(-(-(q.len()+min(burst,s.remaining(q)))//s.bs)-(-(-q.len()//s.bs)) for q in ready)
            r=s.pool.reserve([],need)
            if r is not None: break
            s.preempt()
            ready=[q for q in s.running if q.computed==q.len() and not s.complete(q)]
            if not ready: return 0,outs,facts
        d=s.decode_time(len(ready),sum(q.len() for q in ready))
        for q in ready:
            k=min(1 if s.role=="prefill" else s.accept,s.remaining(q)); done=False
            for _ in range(k):
                s.finalize(q,q.len()-1,q.len()); s.token(q)
                if q.alloc<q.len():
                    if -(-q.len()//s.bs)>len(q.blocks): q.blocks.append(s.pool.private(r))
                    q.alloc=q.len()
                done=s.complete(q); outs.append((q,1,done,"completed"))
                if done: break
            if done: s.finish(q,facts)
            else: q.computed=q.len()-1
        s.pool.cancel(r); return d,outs,facts
    def token(s, q): q.tokens.append(("g",q.id,q.gen)); q.gen+=1
    # --- destinations
    def reserve_cmd(s, q, idle, facts):
        q.order=s.order; s.order+=1; s.pending.append(q)
        if idle: s.retry(facts)
    def retry(s, facts):
        if not s.pending: return
        q=s.pending[0]
        if len(s.running)>=s.seqs: s.attempt[q.id]=s.gen; return
        if s.attempt.get(q.id)==s.gen: return
        s.attempt[q.id]=s.gen
        n=-(-q.prompt//s.bs); hs=[]
        if s.caching:
            while (len(hs)+1)*s.bs<=q.prompt and q.hash(len(hs),s.bs) in s.pool.by: hs.append(q.hash(len(hs),s.bs))
        r=s.pool.reserve(hs,n)
        if r is None: return
        s.pending.pop(0); s.held[q.id]=(q,r); facts.append(("reserved",q,r[1]*s.bs))
    def activate(s, rid, facts):
        q,r=s.held.pop(rid); q.blocks=list(r[0])
        while r[1]: q.blocks.append(s.pool.private(r))
        q.alloc=q.prompt; s.finalize(q,0,q.prompt); q.computed=q.prompt
        k=next((k for k,x in enumerate(s.waiting) if x.order>q.order),len(s.waiting)); s.waiting.insert(k,q)
        s.retry(facts)
    def release_source(s, rid): s.drop_blocks(s.sources.pop(rid)); s.gen+=1

class Log:
    def __init__(s): s.adm=collections.defaultdict(list); s.rec=collections.defaultdict(dict)
    def admit(s, rid, role, at, reused): s.adm[rid].append((at,reused,role))

class Worker:
    def __init__(s, cfg, role, dp, log): s.ranks=[Rank(cfg,role,log) for _ in range(dp)]; s.end=None; s.effects=None; s.wave=0; s.dp=dp; s.deferred=[]; s.empty=False; s.tried=False
    def busy(s): return s.end is not None
    def start(s, now):
        if s.busy() or not any(r.ready() for r in s.ranks): return False
        end=now; eff=[]; any_effect=False
        for r in s.ranks:
            if not r.ready(): eff.append(None); continue
            d,o,f,e=r.step(now,s.wave,s.dp); end=max(end,now+d); eff.append((o,f)); any_effect|=e
        s.wave+=1
        if not any_effect and end==now:  # an empty pass: it is over at once, and being a pass end it tries a reservation
            for k,r in enumerate(s.ranks):
                late=[]; r.retry(late)
                if late: any_effect=True; eff[k]=(eff[k][0] if eff[k] else [],(eff[k][1] if eff[k] else [])+late)
            if not any_effect: return False  # tried again in the next round
            s.empty=True
        s.end=end; s.effects=eff; return True
    def settle(s):
        s.end=None; eff=s.effects; s.effects=None; s.tried=s.empty; s.empty=False
        if all(r.drained() for r in s.ranks): s.wave=0
        return eff

class Driver:
    def __init__(s, case, rows):
        a=case["arrival"]; s.cap=a.get("concurrency") if a["mode"]=="concurrency" else None; ratio=a.get("speedup_ratio",1.0)
        ses=collections.OrderedDict()
        for i,r in enumerate(rows): ses.setdefault(r.get("session_id",("row",i)),[]).append(i)
        s.ses=list(ses.values()); s.where={}; s.delay={}; s.ready=[]; s.queue=[]; s.live=0; s.rows=rows
        t0=min((rows[x[0]].get("timestamp",0) for x in s.ses)) if s.cap is None else 0
        for k,x in enumerate(s.ses):
            for t,i in enumerate(x):
                s.where[i]=(k,t)
                if t:
                    r=rows[i]; d=r.get("delay",r.get("delay_ms"))
                    if d is None and r.get("timestamp") is not None: d=r["timestamp"]-rows[x[t-1]]["timestamp"]
                    s.delay[i]=(d or 0)/(ratio if s.cap is None else 1)
            if s.cap is None: heapq.heappush(s.ready,((rows[x[0]]["timestamp"]-t0)/ratio,k,0,x[0]))
            else: s.queue.append(k)
    def done(s, i, now):
        k,t=s.where[i]; x=s.ses[k]
        if t+1<len(x): heapq.heappush(s.ready,(now+s.delay[x[t+1]],k,t+1,x[t+1]))
        else: s.live-=1
    def due(s, now):
        out=[]
        if s.cap is not None:
            while s.queue and s.live<s.cap:
                k=s.queue.pop(0); s.live+=1; heapq.heappush(s.ready,(now,k,0,s.ses[k][0]))
        while s.ready and s.ready[0][0]<=now:
            t,k,_,i=heapq.heappop(s.ready); out.append((i,t if s.cap is None else now))
        return out
    def next(s): return s.ready[0][0] if s.ready else None

def tokens(case, r):
    b=case["trace_block_size"]; return [h for h in r["hash_ids"] for _ in range(b)][:r["input_length"]]

def simulate(case, rows):
    HASHES.clear(); log=Log(); drv=Driver(case,rows); now=0.0; dp=case.get("dp_size",1); rec=log.rec
    agg="engine" in case; count=0
    if agg:
        ws=[Worker(case["engine"],"agg",dp,log) for _ in range(case["num_workers"])]; rr=0; inner=[0]*len(ws)
        while True:
            changed=True
            while changed:
                changed=False
                for w in ws:
                    if w.busy() and w.end<=now:
                        changed=True
                        for e in w.settle():
                            if e is None: continue
                            for q,n,done,status in e[0]:
                                x=rec[q.id]
                                if n: x.setdefault("first",now); x["last"]=now
                                if done: x["status"]=status; drv.done(q.id,now)
                for i,t in drv.due(now):
                    changed=True; rec[i]["arrival"]=t; k=rr%len(ws); rr+=1; j=inner[k]%dp; inner[k]+=1; rec[i]["worker"]=k; rec[i]["rank"]=j
                    ws[k].ranks[j].submit(Req(i,tokens(case,rows[i]),rows[i]["output_length"]))
                for w in ws: changed|=w.start(now)
            nx=[w.end for w in ws if w.busy()]+([drv.next()] if drv.next() is not None else [])
            if not nx: break
            now=min(nx)
        return log
    P=[Worker(case["prefill_engine"],"prefill",case.get("dp_size",1),log) for _ in range(case["num_prefill_workers"])]
    D=[Worker(case["decode_engine"],"decode",case.get("dp_size",1),log) for _ in range(case["num_decode_workers"])]
    pe=case["prefill_engine"]; bw,by=pe.get("kv_transfer_bandwidth"),pe.get("kv_transfer_bytes_per_token"); missing=pe.get("kv_transfer_timing_mode")=="destination_missing"
    acts=collections.deque(); transfers=[]; ordinal={}; pr=0; dr=0
    def delay(q, fresh):
        if not bw or not by: return 0.0
        return (fresh if missing else q.prompt)*by/(bw*1e9)*1000.0
    def facts_of(fs):
        for f in fs:
            if f[0]=="held": rec[f[1].id]["held"]=now; acts.append(("reserve",f[1].id))
            else: rec[f[1].id]["reserved"]=now; acts.append(("transfer",f[1].id,delay(f[1],f[2])))
    while True:
        changed=True
        while changed:
            changed=False
            for pool in (P,D):
                for w in pool:
                    if w.busy() and w.end<=now:
                        changed=True; eff=w.settle(); acts.extend(w.deferred); w.deferred=[]
                        for rk,e in zip(w.ranks,eff):
                            late=[]
                            if not w.tried: rk.retry(late)
                            if e is not None:
                                for q,n,done,status in e[0]:
                                    x=rec[q.id]
                                    if pool is P:
                                        if status=="rejected": x["status"]=status; drv.done(q.id,now)
                                        continue
                                    if n: x.setdefault("first",now); x["last"]=now
                                    if done: x["status"]=status; drv.done(q.id,now)
                                facts_of(e[1])
                            facts_of(late)
            while transfers and transfers[0][0]<=now:
                changed=True; _,_,rid=heapq.heappop(transfers); acts.append(("activate",rid))
            while acts:
                a=acts.popleft(); rid=a[1]; x=rec[rid]; r=rows[rid]
                if a[0]=="submit":
                    k=pr%(len(P)*dp); pr+=1; x["pw"]=k//dp; x["prank"]=k%dp; rk=P[k//dp].ranks[k%dp]; rk.sources[rid]=None
                    rk.submit(Req(rid,tokens(case,r),min(1,r["output_length"])))
                    changed=True
                elif a[0]=="reserve":
                    k=dr%(len(D)*dp); dr+=1; x["worker"]=k//dp; x["rank"]=k%dp; fs=[]
                    D[k//dp].ranks[k%dp].reserve_cmd(Req(rid,tokens(case,r),r["output_length"]),not D[k//dp].busy(),fs); facts_of(fs); changed=True
                elif a[0]=="transfer":
                    if a[2]>0: heapq.heappush(transfers,(now+a[2],ordinal[rid],rid))
                    else: acts.append(("activate",rid))
                    changed=True
                elif a[0]=="activate":
                    w=D[x["worker"]]
                    if w.busy(): w.deferred.append(a); continue
                    fs=[]; w.ranks[x["rank"]].activate(rid,fs); x["activated"]=now; acts.append(("release",rid)); facts_of(fs); changed=True
                elif a[0]=="release":
                    w=P[x["pw"]]
                    if w.busy(): w.deferred.append(a); continue
                    w.ranks[x["prank"]].release_source(rid); x["released"]=now; changed=True
            for i,t in drv.due(now):
                rec[i]["arrival"]=t; count+=1; ordinal[i]=count; acts.append(("submit",i)); changed=True
            for w in P+D: changed|=w.start(now)
        nx=[w.end for w in P+D if w.busy()]+[t[0] for t in transfers[:1]]+([drv.next()] if drv.next() is not None else [])
        if not nx:
            if any(r.ready() for w in P+D for r in w.ranks): raise RuntimeError("dead end")
            break
        now=min(nx)
    return log

def close(a, b): return (a is None)==(b is None) and (a is None or abs(a-b)<2e-3)
def same(x, y):
    if isinstance(x,(list,tuple)): return len(x)==len(y) and all(same(a,b) for a,b in zip(x,y))
    if isinstance(x,float) or isinstance(y,float): return close(x,y)
    return x==y
def got(log, case, i):
    x=log.rec[i]; ks=("arrival","worker","first","last")+(() if "engine" in case else ("pw","held","reserved","activated","released"))
    names={"agg":"agg","prefill":"prefill","decode":"decode"}
    return [x.get(k) for k in ks]+[[(float(a),b,names[c]) for a,b,c in log.adm[i]]]+([x.get("rank")] if case.get("dp_size",1)>1 and x.get("rank") is not None else [])
def main():
    ok=bad=0; names=sys.argv[1:]
    for line in gzip.open(GOLDEN / "extra-cases.jsonl.gz", "rt"):
        entry=json.loads(line); n=entry["name"]; case=entry["case"]
        if case["router_mode"]!="round_robin" or (names and n not in names): continue
        rows=entry["trace"]; e=entry["expected"]["requests"]
        try: log=simulate(case,rows)
        except Exception as ex: bad+=1; print("ERROR",n,repr(ex)[:100]); continue
        exp=[]
        for r in e:
            v=[r["arrival_ms"],r["worker"],r["first_token_ms"],r["last_token_ms"]]
            if "engine" not in case: v+=[r["prefill_worker"],r["source_held_ms"],r["destination_reserved_ms"],r["destination_activated_ms"],r["source_released_ms"]]
            v+=[[(float(a["at_ms"]),a["reused"],a["pool"]) for a in r["admissions"]]]
            if case.get("dp_size",1)>1: v+=[r["route"][-1]["dp_rank"]]
            exp.append(v)
        g=[got(log,case,i) for i in range(len(rows))]
        if all(same(a,b) or (log.rec[i].get("status")=="rejected" and a[2]==b[2]==None) for i,(a,b) in enumerate(zip(g,exp))): ok+=1
        else:
            bad+=1; print("DIFF",n)
            for i,(a,b) in enumerate(zip(g,exp)):
                if not same(a,b): print("   ",i,"model",a,"\n       ref  ",b); break
    print("cases",ok,bad)
    if names: return
    for f in ("random-extra.jsonl","random-cases.jsonl"):
        ok=bad=0
        for l in open(GOLDEN / f):
            c=json.loads(l); case,rows=c["case"],c["trace"]
            try: log=simulate(case,rows)
            except Exception as ex: bad+=1; print("ERROR",c["name"],repr(ex)[:100]); continue
            dis="engine" not in case; g=[]
            for i,r in enumerate(rows):
                x=log.rec[i]; v=[x.get("arrival"),r["input_length"],r["output_length"],x.get("worker"),[[a,b]+([p] if dis else []) for a,b,p in log.adm[i]],x.get("first"),x.get("last"),x.get("status")]
                if case.get("dp_size"): v.append(x.get("rank"))
                if dis: v+=[x.get(k) for k in ("pw","held","reserved","activated","released")]
                g.append(v)
            k=lambda v:(round(v[0],2),v[1],v[2],str(v[3]),round(v[5] or 0,2),round(v[6] or 0,2),str([(round(a[0],2),a[1]) for a in v[4]]))
            g.sort(key=k); e=sorted(c["expected"],key=k)
            if all(same([float(z) if isinstance(z,int) and j in(0,5,6) else z for j,z in enumerate(a)],b) or (a[7]==b[7]=="rejected") for a,b in zip(g,e)): ok+=1
            else:
                bad+=1
                if bad<6:
                    print("DIFF",c["name"])
                    for a,b in zip(g,e):
                        if not same(a,b): print("    model",a,"\n    ref  ",b); break
        print(f,ok,bad)
main()

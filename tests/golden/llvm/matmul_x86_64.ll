source_filename = "matmul_0"

declare <8 x float> @llvm.fmuladd.v8f32(<8 x float>, <8 x float>, <8 x float>)
declare i32 @tfb_parallel_for(ptr, ptr, ptr, i64)

define internal void @matmul_0.region0(ptr noalias readonly align 64 %b0, ptr noalias readonly align 64 %b1, ptr noalias align 64 %b2, i64 %begin, i64 %end) nounwind "no-trapping-math"="true" {
entry:
  br label %loop1
loop1:
  %v2 = phi i64 [ %begin, %entry ], [ %v2.next, %loop1.latch ]
  %v7 = mul i64 %v2, 6
  %v8 = getelementptr inbounds float, ptr %b0, i64 %v7
  %v24 = mul i64 %v2, 16
  %v25 = getelementptr inbounds float, ptr %b2, i64 %v24
  br label %loop3
loop3:
  %v4 = phi i64 [ 0, %loop1 ], [ %v4.next, %loop3.latch ]
  %r5 = phi <8 x float> [ splat (float 0x0000000000000000), %loop1 ], [ %v16, %loop3.latch ]
  %r6 = phi <8 x float> [ splat (float 0x0000000000000000), %loop1 ], [ %v21, %loop3.latch ]
  %v9 = getelementptr inbounds float, ptr %v8, i64 %v4
  %v11 = mul i64 %v4, 8
  %v12 = getelementptr inbounds float, ptr %b1, i64 %v11
  %v10 = load float, ptr %v9, align 4
  %v13 = load <8 x float>, ptr %v12, align 32
  %v14 = insertelement <8 x float> poison, float %v10, i64 0
  %v15 = shufflevector <8 x float> %v14, <8 x float> poison, <8 x i32> zeroinitializer
  %v16 = call <8 x float> @llvm.fmuladd.v8f32(<8 x float> %v15, <8 x float> %v13, <8 x float> %r5)
  %v17 = getelementptr inbounds float, ptr %v9, i64 3
  %v18 = load float, ptr %v17, align 4
  %v19 = insertelement <8 x float> poison, float %v18, i64 0
  %v20 = shufflevector <8 x float> %v19, <8 x float> poison, <8 x i32> zeroinitializer
  %v21 = call <8 x float> @llvm.fmuladd.v8f32(<8 x float> %v20, <8 x float> %v13, <8 x float> %r6)
  br label %loop3.latch
loop3.latch:
  %v4.next = add nuw nsw i64 %v4, 1
  %v4.more = icmp slt i64 %v4.next, 3
  br i1 %v4.more, label %loop3, label %loop3.done
loop3.done:
  %v22 = fcmp ogt <8 x float> splat (float 0x0000000000000000), %v16
  %v23 = select <8 x i1> %v22, <8 x float> splat (float 0x0000000000000000), <8 x float> %v16
  store <8 x float> %v23, ptr %v25, align 64
  %v26 = fcmp ogt <8 x float> splat (float 0x0000000000000000), %v21
  %v27 = select <8 x i1> %v26, <8 x float> splat (float 0x0000000000000000), <8 x float> %v21
  %v28 = getelementptr inbounds float, ptr %v25, i64 8
  store <8 x float> %v27, ptr %v28, align 32
  br label %loop1.latch
loop1.latch:
  %v2.next = add nuw nsw i64 %v2, 1
  %v2.more = icmp slt i64 %v2.next, %end
  br i1 %v2.more, label %loop1, label %loop1.done
loop1.done:
  ret void
}

define hidden void @matmul_0.region0.entry(ptr %buffers, i64 %begin, i64 %end) nounwind {
entry:
  %slot0 = getelementptr inbounds ptr, ptr %buffers, i64 0
  %buffer0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr inbounds ptr, ptr %buffers, i64 1
  %buffer1 = load ptr, ptr %slot1, align 8
  %slot2 = getelementptr inbounds ptr, ptr %buffers, i64 2
  %buffer2 = load ptr, ptr %slot2, align 8
  call void @matmul_0.region0(ptr %buffer0, ptr %buffer1, ptr %buffer2, i64 %begin, i64 %end)
  ret void
}

define i32 @matmul_0(ptr %buffers, ptr %workspace, ptr %pool) nounwind {
entry:
  %closure = alloca [3 x ptr], align 8
  %argument0.0 = getelementptr inbounds ptr, ptr %buffers, i64 0
  %buffer0.0 = load ptr, ptr %argument0.0, align 8
  %slot0.0 = getelementptr inbounds ptr, ptr %closure, i64 0
  store ptr %buffer0.0, ptr %slot0.0, align 8
  %argument0.1 = getelementptr inbounds ptr, ptr %buffers, i64 1
  %buffer0.1 = load ptr, ptr %argument0.1, align 8
  %slot0.1 = getelementptr inbounds ptr, ptr %closure, i64 1
  store ptr %buffer0.1, ptr %slot0.1, align 8
  %argument0.2 = getelementptr inbounds ptr, ptr %buffers, i64 2
  %buffer0.2 = load ptr, ptr %argument0.2, align 8
  %slot0.2 = getelementptr inbounds ptr, ptr %closure, i64 2
  store ptr %buffer0.2, ptr %slot0.2, align 8
  %status0 = call i32 @tfb_parallel_for(ptr %pool, ptr @matmul_0.region0.entry, ptr %closure, i64 2)
  %status0.bad = icmp ne i32 %status0, 0
  br i1 %status0.bad, label %status0.stop, label %done0
status0.stop:
  ret i32 %status0
done0:
  ret i32 0
}
